"""What `postbus cert` tells its user: what was made, and what to set so that clients trust it.

docs/transports.md says the same at length; tests/e2e/test_transports.py does it.
"""

from collections.abc import Iterator
from pathlib import Path

from postbus.tls.local_ca import CA_CERTIFICATE, CERTIFICATE, KEY, NewCertificate


def told(made: NewCertificate, data: Path | None) -> str:
    """The whole text; `data` is the data folder, if they are in one."""
    return "\n".join((*_files(made), "", *_serving(made, data), "", *_clients(made)))


def _files(made: NewCertificate) -> Iterator[str]:
    folder = made.folder.absolute()
    yield f"CA           {folder / CA_CERTIFICATE}"
    yield f"             {_state(made.new_ca)}, valid until {made.ca_until:%Y-%m-%d}"
    yield f"certificate  {folder / CERTIFICATE}"
    yield f"             {_state(made.new_certificate)}, valid until {made.until:%Y-%m-%d}"
    yield f"             for {', '.join(made.names)}"
    if made.ca_replaced:
        yield "The CA before it had too little time left: every client has to be given this one."


def _state(new: bool) -> str:
    return "made just now" if new else "kept"


def _serving(made: NewCertificate, data: Path | None) -> Iterator[str]:
    folder = made.folder.absolute()
    if data is not None:
        yield f"`postbus serve --data {data}` uses it; a server that is running does so by itself."
    else:
        yield "Serve with it:"
        yield (f"  postbus serve --tls-certificate {folder / CERTIFICATE} --tls-key {folder / KEY}")


def _clients(made: NewCertificate) -> Iterator[str]:
    authority = made.folder.absolute() / CA_CERTIFICATE
    yield "Clients have to trust the CA. Python, messages: an argument of ServiceBusClient"
    yield f'  connection_verify="{authority}"'
    yield "Python, administration (the first for the sync client, the second for the async one):"
    yield f"  export REQUESTS_CA_BUNDLE={authority}"
    yield f"  export SSL_CERT_FILE={authority}"
    yield "Node:"
    yield f"  export NODE_EXTRA_CA_CERTS={authority}"
    yield "Go, and .NET on Linux:"
    yield f"  export SSL_CERT_FILE={authority}"
    yield "Java:"
    yield f"  keytool -importcert -noprompt -alias postbus -file {authority} \\"
    yield "    -keystore postbus-trust.p12 -storepass changeit"
    yield (
        "  java -Djavax.net.ssl.trustStore=postbus-trust.p12 "
        "-Djavax.net.ssl.trustStorePassword=changeit …"
    )
