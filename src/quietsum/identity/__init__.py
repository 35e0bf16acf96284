"""Who is who between machines: certificates, node keys, and the folder that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.identity.certificates import (
        check_client as check_client,
        common_name as common_name,
        read_certificates as read_certificates,
    )
    from quietsum.identity.keyring import (
        CLIENTS as CLIENTS,
        SOON as SOON,
        Keyring as Keyring,
        Validity as Validity,
        add_party as add_party,
        admit_party as admit_party,
        check_serving as check_serving,
        folder_name as folder_name,
        inspect_keyring as inspect_keyring,
        make_keyring as make_keyring,
        make_site_keys as make_site_keys,
    )
    from quietsum.identity.nodekeys import (
        fingerprint as fingerprint,
        make_signer as make_signer,
        read_node_key as read_node_key,
        read_parties as read_parties,
        read_public_key as read_public_key,
        read_verifiers as read_verifiers,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
