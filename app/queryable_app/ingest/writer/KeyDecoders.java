package io.queryabletopics;

/** Make the decoder of a view's keys. */
public final class KeyDecoders {
  private KeyDecoders() {
  }

  /**
   * @param encoding `avro_ID_TYPE`, or for the only field of a message `protobuf_ID_TYPE_NUMBER_always`, or `_implicitly` if a
   *     default is not written. ID is the id of the schema that each key begins with, or `bare`
   */
  public static KeyDecoder of(String encoding) {
    String[] words = encoding.split("_");
    int id = words[1].equals("bare") ? -1 : Integer.parseInt(words[1]);
    if (words[0].equals("avro")) {
      return new AvroKey(words[2], id);
    }
    return new ProtobufKey(words[2], Integer.parseInt(words[3]), words[4].equals("always"), id);
  }

  /** Return where the encoding begins, behind the id of the schema. */
  static int frame(byte[] key, int id) throws Undecodable {
    if (id < 0) {
      return 0;
    }
    int found = SchemaRegistry.id(key);
    if (found != id) {
      throw new Undecodable("its schema has the id " + (found & 0xffffffffL) + ", and not " + id + " of spec.key.schemaFrom.schemaId");
    }
    return SchemaRegistry.FRAME;
  }
}
