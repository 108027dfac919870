"""The operator: a QueryableTopic becomes the objects that carry it out.

Of `queryable_app` it imports the contract and other thinking files, nothing that acts.
"""
