"""The contract of networks, the registry of their names, and the adapter for a user's own module."""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedskew.core import seeds
from fedskew.core.errors import UserError, did_you_mean, format_user_exception
from fedskew.core.types import Spec


class Classifier(nn.Module):
    """A network in two halves: `features` returns [B, F], the linear `head` maps them to logits [B, classes]."""

    head: nn.Linear

    #: name of the head in the state dict: its tensors are `{head_name}.weight` and `{head_name}.bias`
    head_name: str = "head"

    def features(self, x: Tensor) -> Tensor:
        """Return the penultimate representation, [B, F]."""
        raise NotImplementedError

    def forward_with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features from one pass."""
        features = self.features(x)
        return self.head(features), features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_with_features(x)[0]

    def drop_head(self) -> None:
        """Remove the head; only `features` may be called afterwards."""
        del self.head


class TrunkAndHead(Classifier):
    """A classifier whose features are the output of a trunk of layers."""

    def __init__(self, trunk: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class Adapted(Classifier):
    """A user's module: its output is the logits, the input of its head layer the features."""

    wrapped: nn.Module

    def __init__(self, module: nn.Module, head_name: str, called: str) -> None:
        super().__init__()
        self.head_name = head_name
        self.called = called
        # Shared dictionaries, not copies, keep the user's names. The two references bypass nn.Module.__setattr__,
        # which would register the modules a second time.
        for shared in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            object.__setattr__(self, shared, getattr(module, shared))
        object.__setattr__(self, "wrapped", module)
        object.__setattr__(self, "head", module.get_submodule(head_name))

    def train(self, mode: bool = True) -> Adapted:
        """Call the user's own `train`, which may keep layers as they are."""
        self.wrapped.train(mode)
        self.training = mode
        return self

    def features(self, x: Tensor) -> Tensor:
        return self.forward_with_features(x)[1]

    def forward_with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.wrapped.training = self.training
        given: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        try:
            logits = self.wrapped(x)
        except torch.cuda.OutOfMemoryError:  # no mistake of the network's; the engine says what to do
            raise
        except Exception as error:
            raise failure(self.called, x, error) from error
        finally:
            hook.remove()
        if not given:
            raise UserError(f"linear layer '{self.head_name}' is never called. Name the network's head with --head.")
        if given[-1].ndim != 2:
            shape = list(given[-1].shape)
            raise UserError(f"the input of head '{self.head_name}' has shape {shape}. Flatten it to [batch, features].")
        if not isinstance(logits, Tensor):
            raise UserError(f"the network returns a {type(logits).__name__}. Return its logits as one tensor.")
        return logits, given[-1]

    def drop_head(self) -> None:
        stand_in = nn.Identity()
        owner, _, name = self.head_name.rpartition(".")
        setattr(self.wrapped.get_submodule(owner), name, stand_in)
        object.__setattr__(self, "head", stand_in)


def failure(name: str, x: Tensor, error: Exception) -> UserError:
    """Return the error for a network that raised an exception on samples."""
    problem = f"network '{name}' does not work on samples of shape {list(x.shape[1:])}: {format_user_exception(error)}"
    if x.is_floating_point():
        return UserError(f"{problem}. Choose another --model.")
    return UserError(f"{problem}. Give features as float32; integers are token ids.")


def adapt(module: nn.Module, head: str | None = None, called: str = "", classes: int | None = None) -> Classifier:
    """Adapt a module to the contract.

    Args:
        module: The user's network.
        head: The dotted name of its classifier. By default its layer "head", or its last linear layer, among those
            with one output per class, if there are any.
        called: How errors name the network; its class by default.
        classes: The number of classes.

    Returns:
        The module as a Classifier, with its own names.

    Raises:
        UserError: It has no linear layer, or none of that name.
    """
    called = called or type(module).__name__
    if isinstance(module, nn.Linear):
        module = nn.Sequential(OrderedDict(head=module))
    if head is None and isinstance(module, Classifier):
        return module
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(f"{called} has no linear layer. Add one as its head.")
    if head is None:
        fitting = [name for name in linear if module.get_submodule(name).out_features == classes] or linear
        head = "head" if "head" in fitting else fitting[-1]
    if head not in linear:
        raise UserError(f"{called} has no linear layer '{head}'{did_you_mean(head, linear)}")
    return Adapted(module, head, called)


Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def network(name: str) -> Callable[[Builder], Builder]:
    """Register a builder ``(classes, shape, **args) -> nn.Module``; the first line of its docstring describes it."""

    def register(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise UserError(f"there is already a network called '{name}'. Choose another name.")
        _BUILDERS[name] = builder
        return builder

    return register


def known() -> dict[str, str]:
    """Return every registered network with one line about it."""
    return {name: (inspect.getdoc(builder) or "").partition("\n")[0] for name, builder in sorted(_BUILDERS.items())}


def build(spec: Spec, classes: int, shape: tuple[int, ...], seed: int, *, agreed: Spec | None = None) -> Classifier:
    """Build the network of `spec` with initial weights that depend only on `seed`.

    If a network is `agreed`, no other code is run than what it names: the state of a run may name any.
    """
    if agreed is not None:
        _check_code(spec, agreed)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: that would also reseed the accelerators, which are not forked here.
        torch.default_generator.manual_seed(seeds.key(seed, "init"))
        return construct(spec, classes, shape)


def construct(spec: Spec, classes: int, shape: tuple[int, ...]) -> Classifier:
    """Build the network of `spec` with initial weights from torch's current random state."""
    builder = _imported(spec.name) if ":" in spec.name else _registered(spec.name)
    args = dict(spec.args)
    head = args.pop("head", None)
    module = _call(spec.name, builder, {"classes": classes, "shape": shape}, args)
    if not isinstance(module, nn.Module):
        raise UserError(f"network '{spec.name}' is a {type(module).__name__}. Return a torch.nn.Module.")
    made = adapt(module, head, spec.name, classes)
    outputs = made.head.out_features
    if outputs != classes:
        raise UserError(
            f"network '{spec.name}' gives {outputs} outputs for {classes} classes. Give it {classes} outputs."
        )
    return made


def _check_code(wanted: Spec, agreed: Spec) -> None:
    if others := sorted(_functions(vars(wanted)) - _functions(vars(agreed))):
        raise UserError(
            f"a network '{others[0]}' is asked for, which is code that the configuration does not name. Restore the "
            "run's files, or start the run again."
        )


def _functions(network: Mapping[str, Any]) -> set[str]:
    """Return every ``module:function`` that building a network calls, also for networks inside it."""
    inner = [_functions(each) for each in network.values() if isinstance(each, Mapping)]
    name = str(network.get("name", ""))
    return {name}.union(*inner) if ":" in name else set().union(*inner)


def takes(name: str, argument: str) -> bool:
    """Whether the network of that name has a parameter."""
    return argument in inspect.signature(_imported(name) if ":" in name else _registered(name)).parameters


def _registered(name: str) -> Callable[..., nn.Module]:
    if name not in _BUILDERS:
        raise UserError(f"no network is called '{name}'{did_you_mean(name, _BUILDERS)}")
    return _BUILDERS[name]


def _timm(name: str) -> Callable[..., nn.Module]:
    """Return what builds a network of the package timm, with random weights."""
    try:
        timm = importlib.import_module("timm")
        exists = timm.is_model(name)
    except Exception as error:  # torchvision, which it needs, may not fit torch; or a folder is called timm
        raise UserError(
            f"network 'timm:{name}' needs the packages timm and torchvision, which cannot be imported here ({error}). "
            "Type: pip install 'fedskew[timm]'"
        ) from None
    if not exists:
        raise UserError(f"timm has no network '{name}'{did_you_mean(name, timm.list_models())}")

    def build(classes: int, shape: tuple[int, ...], **args: Any) -> nn.Module:
        made: nn.Module = timm.create_model(name, num_classes=classes, in_chans=shape[0], **args)
        return made

    return build


def _imported(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    if module_name == "timm":
        return _timm(function_name)
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise UserError(f"network '{path}' is no 'module:function'. Type, for example, 'my.models:small'.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"network '{path}' cannot be imported: {error}. Install it, or correct its name.") from error
    except Exception as error:
        raise UserError(f"network '{path}' cannot be imported: {format_user_exception(error)}. Correct it.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise UserError(
            f"module '{module_name}' has no function '{function_name}'{did_you_mean(function_name, functions)}"
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise UserError(
            f"network '{path}' does not say which arguments it takes. Name a function of your own that calls it."
        ) from None
    return function


def _call(name: str, builder: Callable[..., Any], task: Mapping[str, Any], args: Mapping[str, Any]) -> Any:
    """Call `builder` with `args` and with those entries of `task` that it has parameters for."""
    parameters = inspect.signature(builder).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {key: p for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in args:
        if key in task:
            raise UserError(f"'{key}' of network '{name}' comes from the data. Remove model.args.{key}.")
        if key not in named and not takes_any:
            raise UserError(
                f"network '{name}' has no argument '{key}'{did_you_mean(key, {*named, 'head'} - set(task))}"
            )
    given = {key: value for key, value in task.items() if takes_any or key in named} | dict(args)
    missing = [key for key, p in named.items() if p.default is p.empty and key not in given]
    if missing:
        raise UserError(f"network '{name}' needs the argument '{missing[0]}'. Add --set model.args.{missing[0]}=VALUE.")
    try:
        return builder(**given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"network '{name}' cannot be built: {format_user_exception(error)}. Correct it.") from error


def image_shape(network_name: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """Return `shape` as (channels, height, width), and refuse images below `smallest` pixels."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        wanted = f"images [channels, height, width] of at least {smallest}x{smallest} pixels"
        raise UserError(f"network '{network_name}' needs {wanted}, not {list(shape)}. Choose another --model.")
    return shape[0], shape[1], shape[2]


def check_positive(network_name: str, **numbers: int) -> None:
    """Refuse an argument that is not a positive integer."""
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"'{name}' of network '{network_name}' is {number!r}. Give a positive integer.")
