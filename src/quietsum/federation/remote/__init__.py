"""Sites on other machines: the coordinator's side, over any transport of bytes."""
