"""Certificates: proofs of bounds that `rlinit.certificates.check`, which shares no code with rlinit, can check."""

from rlinit.certificates.veripb import write_veripb
from rlinit.certificates.vipr import write_vipr
from rlinit.certificates.writing import certificate_of, write_certificate

__all__ = ["certificate_of", "write_certificate", "write_veripb", "write_vipr"]
