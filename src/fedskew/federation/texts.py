"""What a new folder's files say to the people who open them."""

from __future__ import annotations

FEDERATION = """\
# The federation '{name}', made by 'fedskew federation init'.
# What you change here counts from the next 'start' or 'run' on; 'start' also brings the invitations up to date.

name = "{name}"

# Where sites reach this machine, HOST:PORT. Sites have it in their invitations: to change it, tell every site.
address = "{address}"

# Where the server listens: an address of this machine; "0.0.0.0" is all of them (behind a router, say).
listen = "{listen}"

# The sites. Add one here, and 'start' makes its invitation; 'fedskew federation remove' takes one out.
sites = [{sites}]

[rules]
# After so many seconds a round goes on without the sites that have not answered ...
deadline = 3600
# ... if this share of those asked has; else it waits on.
quorum = 0.5
# An update is refused when its norm is above so many times the median of the round.
max-norm = 10
# Whose test data tells how good the model is: the "sites" own, or the "server"'s (then set training.data.dir below).
score = "sites"
# Images are normalised by these, at all sites alike.
mean = 0.5
std = 0.25

# How to train; 'fedskew federation run' takes the same words as options, and they win. Any key of a fedskew
# configuration may stand here, beside those below.
[training]
# 'fedskew methods' lists what there is; methods combine, as in "fedlmd+prox".
method = "fedavg"
rounds = 20
# All randomness follows from it.
seed = 0

[training.model]
# A network's name; "auto" chooses one that fits the data.
name = "auto"

[training.local]
# What a site does in a round: passes over its data, samples in a step, learning rate.
epochs = 5
batch = 50
lr = 0.01

[training.data.options]
# All classes by name, in one order for all sites; a site need not have samples of each.
{classes}
# Images are brought to this size, height and width in pixels; without it all must have one size already.
{size}
"""

INVITATION = """\
# An invitation to the federation '{federation}', for the site '{name}'.
federation = "{federation}"
name = "{name}"
number = {number}
address = "{address}"

# SHA-256 of the app that the coordinator will submit; 'fedskew federation join' compares it with its own.
digest = "{digest}"
version = "{version}"

# What data must look like.
[data]
{data}
"""

README = """\
# Invitation of '{name}' to the federation '{federation}'

Somebody would like to train a model together with you. Your data stays with you: what leaves your machine in each round
is a model's numbers and a few counts. Nothing leaves before you have seen exactly which ones, and approved them (step 4
below). To see the list before you join:

    fedskew federation dry-run METHOD --invitation {name}.zip --data YOUR-DATA --model MODEL --clients SITES

This archive holds no secret: the coordinator's certificate (so that you know whom you talk to), its address, this page.

## What to do

You need a Linux machine that can open connections to {address} (none need to come in), and Python 3.11 or newer.

1. Install fedskew from the wheel, or the copy of its repository, that the coordinator gave you or named to you:
   `pip install './WHEEL-OR-FOLDER[flower]'`. A package of this name from anywhere else may be somebody else's.
2. `fedskew federation join {name}.zip federation --data YOUR-DATA`
   makes the folder `federation` with your own key, and reads your data once to see that it can be read: a CSV, a folder
   of images, or arrays.
3. Send the line that it prints, your *public* key, to the coordinator. Read its fingerprint to them on the telephone,
   so that you both know that nobody changed it on the way. The file `key` in that folder is private: never send it.
4. `fedskew federation approve federation METHOD --model MODEL --clients SITES --rounds ROUNDS`
   shows what would leave in each round, tensor for tensor, and asks whether you agree. METHOD, MODEL, the number of
   SITES, ROUNDS and whatever else the training sets (`--epochs`, `--batch`, `--lr`, `--set KEY=VALUE`) are as the
   coordinator names them. If the sites do not test the model on their own data, say `--score server`, and no scores
   leave.
5. When the coordinator says that you are admitted: `fedskew federation start federation`

Then your machine answers whenever a training is going on that you approved, and refuses all others with the reason.
`fedskew federation log federation` shows what was asked, what left and what was refused; `fedskew federation approve
federation` lists your approvals, and with `--revoke NAME` withdraws one. `fedskew federation status federation` tells
how your machine is, `fedskew federation stop federation` ends it; you may do so at any time, and start again later.

## What can happen to you

- Only fedskew, as you installed it, runs on your machine: `allowed.txt` names the one app that is let in, and that app
  is nothing but the names of fedskew's own parts.
- Keep a copy of the folder `federation` where you keep other secrets: `memory` is what methods remember at your site,
  and `key` is how the coordinator knows you, and what signs your approvals and your log.
- Log files are in `federation/logs`. They never leave your machine.
"""

MEMBER = """\
# The site '{name}' of the federation '{federation}'. What you change here counts from the next 'start' on.
federation = "{federation}"
name = "{name}"
number = {number}
address = "{address}"

# Your own data: a CSV, a folder of images, or a file of arrays. Only you say where it lies.
data = {data}

# What the invitation says of data. These must be the coordinator's words.
{options}

# A network "module:function" that you agree to run here; without it only fedskew's own networks run.
# model = "module:function"
"""
