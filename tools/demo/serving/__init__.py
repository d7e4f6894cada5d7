"""`mooncask demo-serve`: a Conductor with its workers under a load of chats, one policy after the other."""
