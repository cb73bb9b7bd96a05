from fedskew.cli import main

main(prog_name="fedskew")
