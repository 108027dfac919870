package io.queryabletopics;

import com.google.protobuf.Descriptors;
import com.google.protobuf.Descriptors.FieldDescriptor;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Name the SQL types of a message's JSON. What SQL has no type for is the text of its JSON: a message in itself, or any JSON. */
final class ProtobufColumns {
  private static final int COLUMNS_MAX = 5000; // messages within messages multiply
  private static final String TEXT = "STRING";

  private int left = COLUMNS_MAX;

  private ProtobufColumns() {}

  /** Return the columns of a message; null if it has none, or is no JSON object. */
  static String ddl(Descriptors.Descriptor message) {
    String type = new ProtobufColumns().message(message, new HashSet());
    return type.startsWith("STRUCT<") ? type.substring("STRUCT<".length(), type.length() - 1) : null;
  }

  /** Refuse a message that has two fields of one name in JSON, in it or below it. */
  static void check(Descriptors.Descriptor message) {
    check(message, new HashSet());
  }

  private static void check(Descriptors.Descriptor message, Set seen) {
    if (!seen.add(message.getFullName())) {
      return;
    }
    Set names = new HashSet();
    List fields = message.getFields();
    for (int i = 0; i < fields.size(); i++) {
      FieldDescriptor field = (FieldDescriptor) fields.get(i);
      if (!names.add(field.getJsonName())) {
        throw new IllegalArgumentException(
            message.getFullName() + " has two fields whose name in JSON is " + field.getJsonName() + "; give one a json_name");
      }
      if (field.getJavaType() == FieldDescriptor.JavaType.MESSAGE) {
        check(field.getMessageType(), seen);
      }
    }
  }

  private String message(Descriptors.Descriptor message, Set within) {
    String name = message.getFullName();
    String wellKnown = name.startsWith("google.protobuf.") ? wellKnown(message) : null;
    if (wellKnown != null) {
      return wellKnown;
    }
    List fields = message.getFields();
    if (fields.isEmpty() || within.contains(name) || fields.size() > left) {
      return TEXT;
    }
    left -= fields.size();
    Set inside = new HashSet(within);
    inside.add(name);
    StringBuilder columns = new StringBuilder("STRUCT<");
    for (int i = 0; i < fields.size(); i++) {
      FieldDescriptor field = (FieldDescriptor) fields.get(i);
      columns.append(i == 0 ? "`" : ", `").append(field.getJsonName().replace("`", "``")).append("`: ");
      columns.append(field(field, inside));
    }
    return columns.append('>').toString();
  }

  private String wellKnown(Descriptors.Descriptor message) {
    String name = message.getName();
    if (name.equals("Timestamp")) {
      return "TIMESTAMP";
    }
    if (name.equals("Duration") || name.equals("Struct") || name.equals("Value") || name.equals("ListValue") || name.equals("Any")) {
      return TEXT;
    }
    boolean wrapper = name.endsWith("Value") && message.getFields().size() == 1;
    return wrapper ? single((FieldDescriptor) message.getFields().get(0), new HashSet()) : null;
  }

  private String field(FieldDescriptor field, Set within) {
    if (field.isMapField()) {
      return "MAP<STRING, " + single(field.getMessageType().findFieldByNumber(2), within) + ">";
    }
    String one = single(field, within);
    return field.isRepeated() ? "ARRAY<" + one + ">" : one;
  }

  private String single(FieldDescriptor field, Set within) {
    FieldDescriptor.JavaType type = field.getJavaType();
    if (type == FieldDescriptor.JavaType.MESSAGE) {
      return message(field.getMessageType(), within);
    }
    if (type == FieldDescriptor.JavaType.INT) {
      boolean unsigned = field.getType() == FieldDescriptor.Type.UINT32 || field.getType() == FieldDescriptor.Type.FIXED32;
      return unsigned ? "BIGINT" : "INT";
    }
    if (type == FieldDescriptor.JavaType.LONG) {
      boolean unsigned = field.getType() == FieldDescriptor.Type.UINT64 || field.getType() == FieldDescriptor.Type.FIXED64;
      return unsigned ? "DECIMAL(20, 0)" : "BIGINT";
    }
    return type == FieldDescriptor.JavaType.BOOLEAN ? "BOOLEAN" : type == FieldDescriptor.JavaType.DOUBLE ? "DOUBLE"
        : type == FieldDescriptor.JavaType.FLOAT ? "FLOAT" : type == FieldDescriptor.JavaType.BYTE_STRING ? "BINARY" : TEXT;
  }
}
