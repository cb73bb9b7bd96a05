#!/usr/bin/env bash
# Make a federation of a coordinator and two sites in containers, train in it, and stop it.
#
#   examples/docker/federate.sh FOLDER CLASSES METHOD [OPTIONS OF A TRAINING]
#
# FOLDER has north/data.csv and south/data.csv, tables of numbers with a column `label`. Everything else is made there.
set -euo pipefail
folder=$(realpath "$1") classes=$2
training=("${@:3}")
sites=(north south)
for site in "${sites[@]}"; do
    [ -f "$folder/$site/data.csv" ] || { echo "There is no $folder/$site/data.csv. Put the table of $site there." >&2; exit 2; }
done

export FEDSKEW_USER="$(id -u):$(id -g)"
compose=(docker compose --file "$(dirname "$(realpath "$0")")/compose.yaml" --project-directory "$folder")
at() { "${compose[@]}" run --rm --no-deps "$@"; } # a service, and what it types

mkdir -p "$folder/coordinator"
at coordinator federation init /srv/federation --name demo --address "${ADDRESS:-coordinator:9092}" \
    --sites "$(IFS=,; echo "${sites[*]}")" --classes "$classes"
for site in "${sites[@]}"; do
    # the three things that travel between people: the invitation, the training that is agreed on, the public key
    cp "$folder/coordinator/federation/invitations/$site.zip" "$folder/$site/"
    at "$site" federation join "/srv/$site.zip" /srv/federation --data /srv/data.csv
    at "$site" federation approve /srv/federation "${training[@]}" --clients "${#sites[@]}" --yes
    cp "$folder/$site/federation/key.pub" "$folder/coordinator/$site.pub"
    at coordinator federation admit /srv/federation "$site" "/srv/$site.pub"
done

trap '"${compose[@]}" down' EXIT
"${compose[@]}" up --detach --wait
"${compose[@]}" exec -T coordinator fedskew federation run /srv/federation "${training[@]}"
echo "The report: $(ls "$folder"/coordinator/federation/runs/*/report.html)"
