"""Sign with a site's own key, which the coordinator admitted and which never leaves the site."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedskew.core.errors import UserError

KEY = "key"
_ALGORITHM = ec.ECDSA(hashes.SHA384())


def sign(folder: Path, purpose: str, text: str) -> str:
    """Return the signature of a text, in hexadecimal. It includes the purpose, so it serves no other one."""
    return _private(folder / KEY).sign(_message(purpose, text), _ALGORITHM).hex()


def public_key(folder: Path) -> str:
    """Return the public half of a site's key in OpenSSH's format, derived from the private one."""
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return _private(folder / KEY).public_key().public_bytes(encoding, form).decode()


def is_signed(public: str, purpose: str, text: str, signature: str) -> bool:
    """Return whether the owner of a public key signed this text for this purpose."""
    try:
        key, signed = serialization.load_ssh_public_key(public.encode()), bytes.fromhex(signature)
        if not isinstance(key, ec.EllipticCurvePublicKey) or signed.hex() != signature:
            return False
        key.verify(signed, _message(purpose, text), _ALGORITHM)
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def _message(purpose: str, text: str) -> bytes:
    return f"fedskew {purpose}\n{text}".encode()


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        return _loaded(path.read_bytes())
    except OSError as error:
        raise UserError(f"the site's key '{path}' cannot be read: {error.strerror}. Restore it.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(f"'{path}' is not a site's private key. Restore the one that 'join' made.") from None


@cache
def _loaded(content: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_ssh_private_key(content, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError
    return key
