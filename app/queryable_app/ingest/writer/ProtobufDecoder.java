package io.queryabletopics;

import com.google.protobuf.Descriptors;
import java.io.IOException;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Decode Protobuf values: bare ones of one message, or those that begin with the id of their schema in a registry. */
public final class ProtobufDecoder implements ValueDecoder {
  private static final long serialVersionUID = 1L;
  private static final int INDEXES_MAX = 100;
  private static final int TEXTS_MAX = 1000;

  private final String files;
  private final String name;
  private final SchemaRegistry registry;
  private transient Descriptors.Descriptor message; // that every record is read as; null: as it was written
  private transient Map texts; // by the schema's id and the message's indexes

  /**
   * @param files    .proto text, or a descriptor set in base64; null: each record is read as it was written
   * @param name     the message's full name; empty: the only one of the files, or any of a registry
   * @param registry has the writers' schemas; null: records are bare
   */
  public ProtobufDecoder(String files, String name, SchemaRegistry registry) {
    this.files = files;
    this.name = name;
    this.registry = registry;
  }

  public void check() throws IOException {
    try {
      message();
    } catch (IllegalArgumentException e) { // PySpark would take it for one of Spark's
      throw new Undecodable(e.getMessage());
    }
  }

  /** Return the columns of values as Spark's DDL; null if they are not known. */
  public String columns() {
    return files == null ? null : ProtobufColumns.ddl(message());
  }

  public synchronized byte[] decode(byte[] value) throws IOException {
    if (texts == null) {
      texts = new HashMap();
    }
    if (registry == null) {
      ProtobufText text = (ProtobufText) texts.get("");
      if (text == null) {
        text = new ProtobufText(message(), true);
        texts.put("", text);
      }
      return text.json(value, 0);
    }
    int id = SchemaRegistry.id(value);
    int from = endOfIndexes(value);
    String key = id + new String(value, SchemaRegistry.FRAME, from - SchemaRegistry.FRAME, "ISO-8859-1");
    ProtobufText text = (ProtobufText) texts.get(key);
    if (text == null) {
      text = registered(id, value);
      if (texts.size() >= TEXTS_MAX) { // the same indexes can be written in many ways
        texts.clear();
      }
      texts.put(key, text);
    }
    return text.json(value, from);
  }

  private ProtobufText registered(int id, byte[] value) throws IOException {
    Descriptors.Descriptor writer = named(registry.protobuf(id), value);
    Descriptors.Descriptor reader = message();
    String expected = reader == null ? name : reader.getFullName();
    if (expected.length() > 0 && !writer.getFullName().equals(expected)) {
      throw new Undecodable("its message is " + writer.getFullName() + ", and not " + expected);
    }
    try {
      ProtobufColumns.check(writer);
    } catch (IllegalArgumentException e) {
      throw new Undecodable(e.getMessage());
    }
    return new ProtobufText(reader == null ? writer : reader, reader != null);
  }

  private Descriptors.Descriptor message() {
    if (message == null && files != null) {
      Map found = ProtobufFiles.messages(ProtobufFiles.read(files));
      if (name.length() > 0) {
        message = (Descriptors.Descriptor) found.get(name);
      } else if (found.size() == 1) {
        message = (Descriptors.Descriptor) found.values().iterator().next();
      }
      if (message == null) {
        String wrong = name.length() > 0 ? "it has no message " + name : "it has " + found.size() + " messages";
        throw new IllegalArgumentException(wrong + "; name one in spec.value.schemaFrom.message" + some(found));
      }
      ProtobufColumns.check(message);
    }
    return message;
  }

  private static String some(Map found) {
    StringBuilder names = new StringBuilder();
    int left = 10;
    for (Iterator each = found.keySet().iterator(); each.hasNext() && left-- > 0;) {
      names.append(names.length() == 0 ? ": " : ", ").append(each.next());
    }
    return names.toString();
  }

  /** Return the message that the record's indexes name: the one of the file, then the one within it, and so on. */
  private static Descriptors.Descriptor named(Descriptors.FileDescriptor file, byte[] value) throws Undecodable {
    Numbers numbers = new Numbers(value);
    int count = numbers.next();
    List candidates = file.getMessageTypes();
    Descriptors.Descriptor found = null;
    for (int i = 0; i < Math.max(1, count); i++) {
      int index = count == 0 ? 0 : numbers.next(); // a single zero stands for the first message
      if (index < 0 || index >= candidates.size()) {
        throw new Undecodable("its schema has no message with the index " + index);
      }
      found = (Descriptors.Descriptor) candidates.get(index);
      candidates = found.getNestedTypes();
    }
    return found;
  }

  private static int endOfIndexes(byte[] value) throws Undecodable {
    Numbers numbers = new Numbers(value);
    int count = numbers.next();
    if (count < 0 || count > INDEXES_MAX) {
      throw new Undecodable("it has no indexes of a message after the id of its schema");
    }
    for (int i = 0; i < count; i++) {
      numbers.next();
    }
    return numbers.at;
  }

  /** Read the numbers behind the id of the schema: zigzag varints. */
  private static final class Numbers {
    private final byte[] data;
    int at = SchemaRegistry.FRAME;

    Numbers(byte[] data) {
      this.data = data;
    }

    int next() throws Undecodable {
      int bits = 0;
      for (int shift = 0; shift < 35 && at < data.length; shift += 7) {
        int next = data[at++];
        bits |= (next & 0x7f) << shift;
        if (next >= 0) {
          return bits >>> 1 ^ -(bits & 1);
        }
      }
      throw new Undecodable("it has no indexes of a message after the id of its schema");
    }
  }
}
