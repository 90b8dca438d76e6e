"""The secure sum: the server learns the sum of the clients' vectors and no vector of a client.

Every message goes through the server, and the server sends the same message to all clients. A sum takes four steps:

====  ============================================  ==========================================================
step  from the server                               from a client
====  ============================================  ==========================================================
1     the terms                                     two public keys (:func:`~isoproto.secure.client.public_keys`)
2     the keys of all (:class:`Roster`)             encrypted shares of two secrets, one pair for each holder
3     the shares of all (:class:`Table`)            its vector under masks
4     who is in the sum, who is not (:class:`Reveal`)  one share of one secret of each client that it holds shares of
====  ============================================  ==========================================================

Sources: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (double
masking), and Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020 (each client
shares masks with some others instead of all). docs/secure-sum.md says what is protected from whom.
"""
