"""Remedies for a certificate that is not trusted.

Belongs here: the remedy for each reason that OpenSSL gives. Does not belong here: connecting.
"""

from __future__ import annotations

import ssl

# X509_V_ERR_...: CERT_NOT_YET_VALID, CERT_HAS_EXPIRED, HOSTNAME_MISMATCH and IP_ADDRESS_MISMATCH.
_NOT_YET, _EXPIRED, _OTHER_NAME = 9, 10, frozenset({62, 64})


def remedy(error: ssl.SSLCertVerificationError) -> str:
    """The remedy, as one line."""
    if error.verify_code == _EXPIRED:
        return "renew the certificate on the server"
    if error.verify_code == _NOT_YET:
        return "set the clock of this machine, or wait until the certificate is valid"
    if error.verify_code in _OTHER_NAME:
        return "use the name that the certificate is for, or have the name added to it"
    return "set SCM_CA_FILE to the PEM file of its authority"
