"""The operator: a QueryableTopic becomes the objects that carry it out.

Of `queryable_app` it imports the contract and other thinking files, and `kafka_clients`, by which every client of Kafka is
made; nothing else that acts. Here too a file thinks or acts: `plan` decides, `reconciler` looks and carries out.
"""
