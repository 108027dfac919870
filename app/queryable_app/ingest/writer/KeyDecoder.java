package io.queryabletopics;

import java.io.Serializable;

/** Take the encoding off a record key: what is left has the bytes of a key format. */
public interface KeyDecoder extends Serializable {
  byte[] decode(byte[] key) throws Undecodable;
}
