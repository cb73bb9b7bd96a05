"""Hold the text of the files in new folders."""

from __future__ import annotations

FEDERATION = """\
# The federation '{name}', made by 'fedskew federation init'.
# Changes take effect at the next 'start' or 'run'. 'start' also updates the invitations.

name = "{name}"

# HOST:PORT at which sites reach this machine. Invitations contain it: if you change it, send every site a new one.
address = "{address}"

# Address of this machine on which the server listens. "0.0.0.0" means all of them, for example behind a router.
listen = "{listen}"

# The sites. To add one, add its name: 'start' writes its invitation. To remove one: 'fedskew federation remove'.
sites = [{sites}]

[rules]
# After this many seconds a round ends without the sites that have not answered ...
deadline = 3600
# ... if this share of the sites asked has answered. Otherwise the round waits.
quorum = 0.5
# Refuse an update whose norm exceeds the round's median norm by this factor.
max-norm = 10
# Test data that scores the model: the "sites" own, or the "server"'s (then set training.data.dir below).
score = "sites"
# All sites normalize images with this mean and standard deviation.
mean = 0.5
std = 0.25

# The training. Options of 'fedskew federation run' override these values. All keys of a fedskew configuration are
# allowed here.
[training]
# 'fedskew methods' lists all methods. Combine them with +, for example "fedlmd+prox".
method = "fedavg"
rounds = 20
# The seed of all randomness.
seed = 0

[training.model]
# The network; "auto" chooses one that fits the data.
name = "auto"

[training.local]
# Local epochs, batch size and learning rate of a round at a site.
epochs = 5
batch_size = 50
lr = 0.01

[training.data.options]
# All classes by name, in the same order for all sites. A site need not have samples of every class.
{classes}
# Resize images to this height x width in pixels. Without it, all images must have one size already.
{size}
# The features of a table, as 'fedskew data agree' writes them: all sites must make the same ones.
{encoder}
"""

INVITATION = """\
# An invitation to the federation '{federation}' for the site '{name}'.
federation = "{federation}"
name = "{name}"
number = {number}
address = "{address}"

# SHA-256 of the app that the coordinator submits. 'fedskew federation join' compares it with its own.
digest = "{digest}"
version = "{version}"

# Classes, image size and features of the data.
[data]
{data}
"""

README = """\
# Invitation for '{name}' to the federation '{federation}'

You are invited to train a model together with other sites. Your data stays at your site. In each round your machine
sends numbers of a model and a few counts. It sends nothing before you have seen the exact list and approved it (see
step 4).
To see the list before you join:

    fedskew federation dry-run METHOD --invitation {name}.zip --data YOUR-DATA --model MODEL --clients SITES

This archive holds no secret. It holds this page, the coordinator's address, and the certificate by which your machine
recognizes the coordinator.

## Steps

You need a Linux machine with Python 3.11 or newer that can open connections to {address}. No port needs to be open.

1. Install fedskew from the wheel or the repository that the coordinator named to you:
   `pip install './WHEEL-OR-FOLDER[flower]'`. Do not install a package of this name from another source.
2. `fedskew federation join {name}.zip federation --data YOUR-DATA`
   makes the folder `federation` with your own key. It reads your data (a CSV, a folder of images, or arrays) once, to
   check it.
3. Send the printed line, your *public* key, to the coordinator. Read its fingerprint to them on the telephone, so that
   both of you know it arrived unchanged. The file `key` in the folder is private: never send it.
4. `fedskew federation approve federation METHOD --model MODEL --clients SITES --rounds ROUNDS`
   lists every tensor that leaves in each round and asks for your approval. The coordinator tells you METHOD, MODEL, the
   number of SITES, ROUNDS and any other setting (`--local-epochs`, `--batch-size`, `--lr`, `--set KEY=VALUE`). If the
   sites do not test the model on their own data, add `--score server`: then no scores leave.
5. When the coordinator has admitted you: `fedskew federation start federation`

Your machine now takes part in every training that you approved. It refuses all others and logs the reason.

| to do this | type |
|---|---|
| see requests, answers and refusals | `fedskew federation log federation` |
| list approvals; withdraw one | `fedskew federation approve federation`; add `--revoke NAME` |
| see whether your machine is connected | `fedskew federation status federation` |
| stop; you can start again later | `fedskew federation stop federation` |

## Risks

- Your machine runs only the fedskew that you installed. `allowed.txt` names the only app that it accepts, and that app
  contains nothing but names of fedskew's own parts.
- Back up the folder `federation` as you back up secrets. `memory` holds the state of methods at your site. `key`
  identifies you and signs your approvals and your log.
- Log files are in `federation/logs`. They never leave your machine.
"""

SITE = """\
# The site '{name}' of the federation '{federation}'. Changes take effect at the next 'start'.
federation = "{federation}"
name = "{name}"
number = {number}
address = "{address}"

# Your own data: a CSV, a folder of images, or a file of arrays. Only this line says where it is.
data = {data}

# The data settings of the invitation. They must equal the coordinator's.
{options}

# How your table writes numbers, if it does not say so itself: the decimal mark, and cells that mean no value.
{notation}

# A network "module:function" that you allow to run here. Without it, only fedskew's own networks run.
# model = "module:function"
"""
