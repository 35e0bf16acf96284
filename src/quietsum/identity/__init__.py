"""Who is who between machines: certificates, node keys, and the folder that holds them."""
