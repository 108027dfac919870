package io.queryabletopics;

import java.nio.ByteBuffer;

/** Encode what the envelopes of a latest-value view carry: wire/keyed_contents.py has the layout. */
final class KeyedContent {
  private static final byte LEFT = 0, ROW = 1, KEYLESS = 2;

  private KeyedContent() {}

  /** Return a row: the key of its record, or null, and its value. */
  static byte[] row(byte[] recordKey, byte[] value) {
    int length = recordKey == null ? 0 : recordKey.length;
    ByteBuffer content = ByteBuffer.allocate(1 + 4 + length + value.length);
    content.put(recordKey == null ? KEYLESS : ROW).putInt(length);
    if (recordKey != null) {
      content.put(recordKey);
    }
    return content.put(value).array();
  }

  /** Return the message that the newest record of a key has no row here. */
  static byte[] left(byte[] recordKey) {
    return ByteBuffer.allocate(1 + 4 + recordKey.length).put(LEFT).putInt(recordKey.length).put(recordKey).array();
  }
}
