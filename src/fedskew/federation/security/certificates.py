"""Make a federation's certificate authority, its server's certificate, and the key pairs of its sites."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedskew.core import atomic_io
from fedskew.core.errors import UserError

YEARS = 10
DAYS = 365 * YEARS
#: days before the end of a certificate from which on `status` warns
SOON = 30
CA_KEY, CA, SERVER_KEY, SERVER = "ca.key", "ca.crt", "server.key", "server.crt"
#: the next authority, and the present one's signature of its certificate
NEXT_KEY, NEXT, NEXT_SIGNED = "ca.next.key", "ca.next.crt", "ca.next.sig"
KEY, PUBLIC_KEY = "key", "key.pub"


def make_authority(folder: Path, name: str, days: int = DAYS, key_file: str = CA_KEY, file: str = CA) -> None:
    """Make a certificate authority that signs this federation's server and nothing else."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}, a federation of fedskew")])
    certificate = (
        _certificate(subject, subject, key.public_key(), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    atomic_io.write(folder / key_file, _private_pem(key), private=True)
    atomic_io.write(folder / file, certificate.public_bytes(serialization.Encoding.PEM))


def make_next_authority(folder: Path, name: str, days: int = DAYS) -> None:
    """Make the next authority; the present one signs it, so that sites can trust it."""
    make_authority(folder, name, days, NEXT_KEY, NEXT)
    signature = _authority_key(folder).sign((folder / NEXT).read_bytes(), ec.ECDSA(hashes.SHA384()))
    atomic_io.write(folder / NEXT_SIGNED, signature)


def take_next_authority(folder: Path) -> None:
    """Make the next authority the present one; after a crash, call this again."""
    if (folder / NEXT_KEY).exists():
        atomic_io.rename(folder / NEXT_KEY, folder / CA_KEY)
    (folder / NEXT_SIGNED).unlink(missing_ok=True)
    atomic_io.rename(folder / NEXT, folder / CA)


def trusted(folder: Path) -> bytes:
    """Return the authority's certificate, and the next one's if there is one, so that sites trust both."""
    return b"".join((folder / name).read_bytes() for name in (CA, NEXT) if (folder / name).exists())


def is_followed(known: bytes, given: bytes, signature: bytes) -> bool:
    """Return whether each authority in `given` is a known one, or was signed by one."""
    before = x509.load_pem_x509_certificates(known)
    return all(
        each in before or any(_has_signed(other, each, signature) for other in before)
        for each in x509.load_pem_x509_certificates(given)
    )


def _has_signed(authority: x509.Certificate, other: x509.Certificate, signature: bytes) -> bool:
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, other.public_bytes(serialization.Encoding.PEM), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def ends(file: Path) -> datetime:
    """Return when the last certificate in a file expires."""
    try:
        return max(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"certificate '{file}' cannot be read: {error}. Restore it.") from None


def days_left(file: Path) -> int:
    """Return for how many days the certificates in a file are valid."""
    return (ends(file) - datetime.now(UTC)).days


def make_server(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """Make the server's key and certificate for these host names and IP addresses."""
    authority, signer = x509.load_pem_x509_certificate((folder / CA).read_bytes()), _authority_key(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _certificate(subject, authority.subject, key.public_key(), signer.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .sign(signer, hashes.SHA384())
    )
    atomic_io.write(folder / SERVER_KEY, _private_pem(key), private=True)
    atomic_io.write(folder / SERVER, certificate.public_bytes(serialization.Encoding.PEM))


def names_of_server(folder: Path) -> set[str]:
    """Return the hosts of the server's certificate; none if the present authority did not issue it."""
    if not ((folder / SERVER).exists() and (folder / SERVER_KEY).exists()):
        return set()
    certificate = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((folder / CA).read_bytes()))
    except (ValueError, TypeError, InvalidSignature):
        return set()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    }


def make_site_key(folder: Path, name: str) -> None:
    """Make a site's key pair in OpenSSH's format. The private key never leaves `folder`."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    atomic_io.write(folder / KEY, key.private_bytes(serialization.Encoding.PEM, form, plain), private=True)
    atomic_io.write(folder / PUBLIC_KEY, f"{_public_text(key.public_key())} {name}\n")


def public_key(given: str) -> str:
    """Read a site's public key, without comment, from a file or from the text itself."""
    path, text = Path(given), given
    try:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"public key file '{given}' cannot be read: {error}. Name another.") from None
    if "PRIVATE KEY" in text:
        raise UserError(f"'{given[:40]}' is a private key, which must never leave its site. Ask for '{PUBLIC_KEY}'.")
    try:
        key = serialization.load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        shown = given if len(given) <= 40 else f"{given[:40]}..."
        raise UserError(
            f"'{shown}' is neither a public key nor a file with one. Give the line in the site's '{PUBLIC_KEY}', which "
            "starts with ecdsa-sha2-nistp384."
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(
            f"the public key is of type '{text.split()[0]}'. Use the one of type ecdsa-sha2-nistp384 that 'join' made."
        )
    return _public_text(key)


def pem(public: str) -> bytes:
    """Return a public key in the format that Flower compares."""
    key = serialization.load_ssh_public_key(public.encode())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(public: str) -> str:
    """Return the fingerprint that two people compare; ``ssh-keygen -l`` prints the same."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _authority_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"'{folder / CA_KEY}' is not the key that 'init' made. Restore that one.")
    return key


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def _public_text(key: ec.EllipticCurvePublicKey) -> str:
    form = serialization.PublicFormat.OpenSSH
    return key.public_bytes(serialization.Encoding.OpenSSH, form).decode()
