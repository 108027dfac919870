package io.queryabletopics;

import java.io.IOException;
import java.io.Serializable;

/** Decode a record's value into the JSON that the view stores. Each task of a query has a copy of its own. */
public interface ValueDecoder extends Serializable {
  /** Return JSON in UTF-8. Throws Undecodable for a bad record; any other exception ends the query, which starts again. */
  byte[] decode(byte[] value) throws IOException;

  /** Throw an exception if no record can be decoded, because the schema is wrong. */
  void check() throws IOException;
}
