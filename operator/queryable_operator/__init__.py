"""Turn QueryableTopics into Kubernetes objects: the operator.

The rooms are, from the lowest: `spec`, `build`, `rollout`, `report`, `decide` (pure) and `act` (adapters). Of `queryable_app`
the operator imports the pure rooms and, from `platform`, the Kafka clients and listeners.
"""
