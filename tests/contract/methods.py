"""What the battery runs over: every registered method, and combinations."""

from __future__ import annotations

from fedskew.methods import registry

COMBINATIONS = [
    "fedla+prox",
    "fednoro(warmup=2, distance='global_l2', soft=True, kd_logits='raw', la=False)+prox+avgm",
    "fednoro(warmup=1, drop=True, gate=False, epsilon=1.0)",
    "fedprox+avgm",
    "fedprox+fedsam+fedexp",
    "scaffold(weights='samples')+fedsam",
    "fednova+prox",
    "mofedsam+fedexp",
    "fedgf(T_D=0.5, W=2)+avgm",
    "fedconcat(clusters=3, encoder_rounds=2, head='joined', cap=1.2)+fednova+prox",
    "fedlmd+prox",
    "fedlmd+avgm",
    "fedlmd+prox+avgm",
    "fedlmd(teacher_from=2)",
    "fedlmd(teacher_from=1)+prox+avgm",
    "fedvls+fedexp",
    "fedvls+fedsam",
    "fedvls+fedsam+fedexp",
    "fedvls(statistics='batch', form='paper')",
    "fpl+fedvls",
    "moon+fedcurv+avgm",
    "fedcurv(fisher='sample', s=4)",
    "fedcorr(warmup=2, finetune=0, losses='paper')+fedsam+avgm",
    "rofl(T_pl=1, gradual=2)+prox",
    "rofl(T_pl=0, detach_features=False, lam_cen=0.01)+fedsam",
    "rhfl(safe=False, size_weighted=False)+avgm",
    "fedlsr(variant='paper', t_w=1)+fedsam",
    "fedavg+dp(clip=0.5, sigma=0.01)",
    "fedlmd+dp",
    "fedvls+fedexp+dp(sigma=0.1)",
]

#: where the defaults are made for more rounds than the battery has
SMALL = {
    "fedconcat": "fedconcat(encoder_rounds=1)",
    "fednoro": "fednoro(warmup=1, redetect=1)",
    "fedcorr": "fedcorr(warmup=1, finetune=1, confidence=0.1)",
    "fedcorr-la": "fedcorr-la(warmup=2, finetune=1, confidence=0.1)",
}

EVERY = [*(SMALL.get(name, name) for name in registry.known()), *COMBINATIONS]

#: weight zero (or one client) is the plain method, bit for bit: expression -> what it must equal
LIMITS = {
    "fednoro(warmup=1)": "fedla",  # four clients are too few to call one noisy
    "la+fedavg": "fedla",
    "fedprox(mu=0)": "fedavg",
    "fedavgm(beta=0)": "fedavg",
    "fedsam(rho=0)": "fedavg",
    "mofedsam(beta=1)": "fedsam",
    "mofedsam(beta=1, rho=0)": "fedavg",
    "fedgf(c=0)": "fedsam",
    "fedgf(rho=0, c=0)": "fedavg",
    "fedavg-ls(mu=0)": "fedavg",
    "fedrs(alpha=1)": "fedavg",
    "fedrs(alpha=1, mode='soft')": "fedavg",
    "fedkd(beta=0)": "fedavg",
    "fedekd(beta=0)": "fedavg",
    "feddkd(gamma=0)": "fedavg",
    "fedntd(beta=0)": "fedavg",
    "fedntd-tf(beta=0)": "fedavg",
    "fedlmd(beta=0)": "fedavg",
    "fedlmd-tf(beta=0)": "fedavg",
    "fedlmd(beta=0, teacher_from=1)": "fedavg",
    "fedlmd(teacher_from=0)": "fedlmd",
    "fedlmd(teacher_from=3)": "fedlmd-tf",
    "fedlmd(beta=2, tau=3, teacher_from=3, free_beta=0.5, free_tau=2)": "fedlmd-tf(beta=0.5, tau=2)",
    "fedlmd(beta=2, tau=3, free_beta=0.5, free_tau=2)": "fedlmd(beta=2, tau=3)",
    "fedvls(lam=0, gamma=0)": "fedcal",
    "feded": "fedvls",
    "fedcal+vls": "fedvls",
    "prox+fedlmd": "fedlmd+prox",
    "fedmr(mu=0)": "fedavg",
    "moon(mu=0)": "fedavg",
    "fedcurv(lam=0)": "fedavg",
    "fedcorr(warmup=2, finetune=1, confidence=0.1)+la": "fedcorr-la(warmup=2, finetune=1, confidence=0.1)",
    "rhfl(alpha=1, beta=0, eta=0)": "fedavg",
    "dp(clip=None, sigma=0)": "fedavg",
    "fedlmd+dp(clip=None, sigma=0)": "fedlmd",
    "fedvls+fedexp+dp(clip=None, sigma=0)": "fedvls+fedexp",
    "dp+fedavgm+fedlmd": "fedlmd+avgm+dp",
    "fedlsr(t_w=1)": "fedlsr",  # a fifth of three rounds is over in the second
}

#: with a single client
LONELY = {
    "scaffold": "fedavg",
    "scaffold(weights='samples')": "fedavg",
    "scaffold(weights='mixed')": "fedavg",
    "fedexp": "fedavg",
    "fedcurv": "fedavg",
    "rofl(forget=0, lam_cen=0, lam_e=0)": "fedavg",
    "rhfl(alpha=1, beta=0)": "fedavg",
}
