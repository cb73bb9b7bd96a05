"""The command doctor."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fedskew import __version__
from fedskew.cli import options
from fedskew.cli.screen import echo, print_json

if TYPE_CHECKING:
    from fedskew.experiment.doctor import DeviceCheck

_KNOWN = {True: "yes", False: "no", None: "cannot be known here"}


@click.command()
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show what this machine has, and train one step on each device.

    The exit code is 1 if a device cannot train, or gives other bits the second time.
    """
    from fedskew.experiment.doctor import diagnose

    found = diagnose()
    if as_json:
        print_json(asdict(found) | {"fedskew": __version__, "well": found.well})
    else:
        lines = {
            "fedskew": __version__,
            "with": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
            "processor": f"{found.cores} cores, {found.processor}; instructions for bf16: {_KNOWN[found.bf16]}",
            "extras": ", ".join(name for name, there in found.extras.items() if there) or "none",
            "not installed": ", ".join(name for name, there in found.extras.items() if not there) or "none",
            "data folder": found.data_folder or "FEDSKEW_DATA is not set; digits needs none",
        }
        lines |= {f"device {each.device}": _says(each) for each in found.devices}
        width = max(map(len, lines))
        for name, text in lines.items():
            echo(f"{name:{width}}  {text}")
        if len(found.devices) == 1:
            echo("No GPU is visible. fedskew trains on the CPU.")
    if not found.well:
        ctx.exit(1)


def _says(device: DeviceCheck) -> str:
    if device.error is not None:
        return f"{device.name}: cannot train: {device.error}"
    again = "same bits twice" if device.same_bits else "OTHER bits the second time"
    return f"{device.name}: one training step {1000 * (device.seconds or 0):.1f} ms, {again}"
