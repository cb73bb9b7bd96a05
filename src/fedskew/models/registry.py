"""What a network promises, how it is found by name, and how a user's own module is brought to the same promise."""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedskew import seeds
from fedskew.errors import UserError, nearest, theirs
from fedskew.types import Spec


class Classifier(nn.Module):
    """A network in two halves: `features` gives [B, F], the linear `head` turns them into logits [B, classes]."""

    head: nn.Linear

    #: Where the head stands in the state dict: its tensors are `{head_name}.weight` and `{head_name}.bias`.
    head_name: str = "head"

    def features(self, x: Tensor) -> Tensor:
        """The penultimate representation, [B, F]."""
        raise NotImplementedError

    def forward_with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features from one pass."""
        features = self.features(x)
        return self.head(features), features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_with_features(x)[0]

    def drop_head(self) -> None:
        """Forget the head for good; only `features` may be called afterwards."""
        del self.head


class TrunkAndHead(Classifier):
    """The usual case: the features are what a trunk of layers gives."""

    def __init__(self, trunk: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class Adapted(Classifier):
    """A user's module: its logits are what it returns, its features what its head layer was given."""

    wrapped: nn.Module

    def __init__(self, module: nn.Module, head_name: str, called: str) -> None:
        super().__init__()
        self.head_name = head_name
        self.called = called
        # The same dictionaries, not copies, so that every name stays the user's own. The two references go past
        # nn.Module.__setattr__, which would register what they point at a second time.
        for shared in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            object.__setattr__(self, shared, getattr(module, shared))
        object.__setattr__(self, "wrapped", module)
        object.__setattr__(self, "head", module.get_submodule(head_name))

    def train(self, mode: bool = True) -> Adapted:
        """As the user's module does it, which may leave layers of its own as they are."""
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
        except Exception as error:
            raise failure(self.called, x, error) from error
        finally:
            hook.remove()
        if not given:
            raise UserError(f"the linear layer '{self.head_name}' is never called; name the network's head by 'head'")
        if given[-1].ndim != 2:
            raise UserError(f"the head '{self.head_name}' must be given [batch, features], not {list(given[-1].shape)}")
        if not isinstance(logits, Tensor):
            raise UserError(f"a network must return its logits as one tensor, not a {type(logits).__name__}")
        return logits, given[-1]

    def drop_head(self) -> None:
        stand_in = nn.Identity()
        owner, _, name = self.head_name.rpartition(".")
        setattr(self.wrapped.get_submodule(owner), name, stand_in)
        object.__setattr__(self, "head", stand_in)


def failure(name: str, x: Tensor, error: Exception) -> UserError:
    """What to say of a network that raised an error on samples."""
    told = f"network '{name}' does not work on samples of shape {list(x.shape[1:])}: {theirs(error)}"
    if x.is_floating_point():
        return UserError(told)
    return UserError(f"{told}; these are whole numbers, so text: give numbers that are none as float32")


def adapt(module: nn.Module, head: str | None = None, called: str = "", classes: int | None = None) -> Classifier:
    """`module` under the contract; `head` is the dotted name of its classifier.

    By default that is its layer "head", or its last linear one, among those with an output for each of the `classes`,
    if there are any. Errors call it by its class, if not as it is `called`.
    """
    called = called or type(module).__name__
    if isinstance(module, nn.Linear):
        module = nn.Sequential(OrderedDict(head=module))
    if head is None and isinstance(module, Classifier):
        return module
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(f"a network needs a linear layer as its head, and {called} has none")
    if head is None:
        fitting = [name for name in linear if module.get_submodule(name).out_features == classes] or linear
        head = "head" if "head" in fitting else fitting[-1]
    if head not in linear:
        raise UserError(f"{called} has no linear layer '{head}'{nearest(head, linear)}")
    return Adapted(module, head, called)


Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def network(name: str) -> Callable[[Builder], Builder]:
    """Register a builder ``(classes, shape, **args) -> nn.Module``; the first line of its docstring describes it."""

    def register(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise UserError(f"there is already a network called '{name}'")
        _BUILDERS[name] = builder
        return builder

    return register


def known() -> dict[str, str]:
    """Every registered network with one line about it."""
    return {name: (inspect.getdoc(builder) or "").partition("\n")[0] for name, builder in sorted(_BUILDERS.items())}


def build(spec: Spec, classes: int, shape: tuple[int, ...], seed: int, *, agreed: Spec | None = None) -> Classifier:
    """The network of `spec` with initial weights that depend on `seed` alone.

    If a network is `agreed`, no other code is run than what it names: the state of a run may name any.
    """
    if agreed is not None:
        _check_code(spec, agreed)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: that would also reseed the accelerators, which are not forked here.
        torch.default_generator.manual_seed(seeds.key(seed, "init"))
        return construct(spec, classes, shape)


def construct(spec: Spec, classes: int, shape: tuple[int, ...]) -> Classifier:
    """The network of `spec` with initial weights from torch's current random state."""
    builder = _imported(spec.name) if ":" in spec.name else _registered(spec.name)
    args = dict(spec.args)
    head = args.pop("head", None)
    module = _call(spec.name, builder, {"classes": classes, "shape": shape}, args)
    if not isinstance(module, nn.Module):
        raise UserError(f"network '{spec.name}' must be a torch.nn.Module, not a {type(module).__name__}")
    made = adapt(module, head, spec.name, classes)
    outputs = made.head.out_features
    if outputs != classes:
        raise UserError(f"network '{spec.name}' gives {outputs} outputs, but there are {classes} classes")
    return made


def _check_code(wanted: Spec, agreed: Spec) -> None:
    if others := sorted(_functions(vars(wanted)) - _functions(vars(agreed))):
        raise UserError(
            f"a network '{others[0]}' is asked for, which is code that the configuration does not name. Restore the "
            "run's files, or begin the run anew."
        )


def _functions(network: Mapping[str, Any]) -> set[str]:
    """The ``module:function`` that building a network calls, and those of the networks inside it."""
    inner = [_functions(each) for each in network.values() if isinstance(each, Mapping)]
    name = str(network.get("name", ""))
    return {name}.union(*inner) if ":" in name else set().union(*inner)


def takes(name: str, argument: str) -> bool:
    """Whether the network of that name asks for an argument."""
    return argument in inspect.signature(_imported(name) if ":" in name else _registered(name)).parameters


def _registered(name: str) -> Callable[..., nn.Module]:
    if name not in _BUILDERS:
        raise UserError(f"no network is called '{name}'{nearest(name, _BUILDERS)}")
    return _BUILDERS[name]


def _imported(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise UserError(f"network '{path}' should be written 'module:function', for example 'my.models:small'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"network '{path}' cannot be imported: {error}") from error
    except Exception as error:
        raise UserError(f"network '{path}' cannot be imported: {theirs(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise UserError(f"module '{module_name}' has no function '{function_name}'{nearest(function_name, functions)}")
    try:
        inspect.signature(function)
    except ValueError:
        raise UserError(
            f"network '{path}' does not say which arguments it takes. Put it into a function of yours, and name that."
        ) from None
    return function


def _call(name: str, builder: Callable[..., Any], task: Mapping[str, Any], args: Mapping[str, Any]) -> Any:
    """Call `builder` with `args` and with as much of `task` as it asks for."""
    parameters = inspect.signature(builder).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {key: p for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in args:
        if key in task:
            raise UserError(f"'{key}' of network '{name}' comes from the data and cannot be set")
        if key not in named and not takes_any:
            raise UserError(f"network '{name}' has no argument '{key}'{nearest(key, {*named, 'head'} - set(task))}")
    given = {key: value for key, value in task.items() if takes_any or key in named} | dict(args)
    missing = [key for key, p in named.items() if p.default is p.empty and key not in given]
    if missing:
        raise UserError(f"network '{name}' needs the argument '{missing[0]}'")
    try:
        return builder(**given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"network '{name}' cannot be built: {theirs(error)}") from error


def image_shape(network_name: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """`shape` as (channels, height, width), for a network that needs at least `smallest` pixels each way."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        wanted = f"images [channels, height, width] of at least {smallest}x{smallest} pixels"
        raise UserError(f"network '{network_name}' needs {wanted}, not samples of shape {list(shape)}")
    return shape[0], shape[1], shape[2]


def check_positive(network_name: str, **numbers: int) -> None:
    """Refuse an argument that is not a positive whole number."""
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"'{name}' of network '{network_name}' must be a positive whole number, not {number!r}")
