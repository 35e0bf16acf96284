"""Who is who between machines: certificates, node keys, and the folder that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.identity.certificates import (
        check_client as check_client,
        fingerprint as fingerprint,
        name_in as name_in,
        read_certificates as read_certificates,
        read_public_key as read_public_key,
    )
    from quietsum.identity.greetings import roster_of as roster_of, signing as signing
    from quietsum.identity.keyring import (
        CLIENTS as CLIENTS,
        add as add,
        admit as admit,
        folder_name as folder_name,
        make as make,
        make_own as make_own,
    )
    from quietsum.identity.keyring_report import (
        SOON as SOON,
        Keyring as Keyring,
        Validity as Validity,
        check_serving as check_serving,
        look as look,
    )
    from quietsum.identity.nodekeys import read_node_key as read_node_key, read_roster as read_roster
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
