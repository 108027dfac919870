package io.queryabletopics;

import com.fasterxml.jackson.core.JsonGenerator;
import com.google.protobuf.ByteString;
import com.google.protobuf.CodedInputStream;
import com.google.protobuf.Descriptors;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.UninitializedMessageException;
import java.io.IOException;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Turn records of one message into JSON, by proto3's mapping and the rules of docs/formats.md. Not for several threads at a time. */
final class ProtobufText {
  private static final String WELL_KNOWN = "google.protobuf.";
  private static final long SECONDS_MIN = -62135596800L; // 0001-01-01
  private static final long SECONDS_MAX = 253402300799L; // 9999-12-31
  private static final long DURATION_SECONDS_MAX = 315576000000L;
  private static final int NANOS_MAX = 999999999;

  private final Descriptors.Descriptor message;
  private final boolean unknownFields;
  private JsonOutput out;
  private JsonGenerator json;

  /** @param unknownFields whether a record may have fields that the message lacks, because a later schema wrote it */
  ProtobufText(Descriptors.Descriptor message, boolean unknownFields) {
    this.message = message;
    this.unknownFields = unknownFields;
  }

  byte[] json(byte[] record, int from) throws IOException {
    try {
      CodedInputStream in = CodedInputStream.newInstance(record, from, record.length - from);
      DynamicMessage.Builder builder = DynamicMessage.newBuilder(message);
      builder.mergeFrom(in);
      in.checkLastTagWas(0);
      out = new JsonOutput();
      json = out.json;
      message(builder.build(), 0);
      return out.finish();
    } catch (InvalidProtocolBufferException e) {
      throw new Undecodable("not Protobuf of " + message.getFullName() + ": " + e.getMessage());
    } catch (UninitializedMessageException e) {
      throw new Undecodable("not Protobuf of " + message.getFullName() + ": " + e.getMessage());
    } catch (StackOverflowError e) {
      throw new Undecodable("nested deeper than " + JsonOutput.DEPTH_MAX);
    }
  }

  private void message(Message of, int depth) throws IOException {
    checkUnknown(of);
    Descriptors.Descriptor type = of.getDescriptorForType();
    if (type.getFullName().startsWith(WELL_KNOWN) && wellKnown(type.getName(), of, depth)) {
      return;
    }
    int inside = deeper(depth);
    List fields = type.getFields();
    json.writeStartObject();
    for (int i = 0; i < fields.size(); i++) {
      Descriptors.FieldDescriptor field = (Descriptors.FieldDescriptor) fields.get(i);
      if (!field.hasPresence() || of.hasField(field)) {
        json.writeFieldName(field.getJsonName());
        field(field, of.getField(field), inside);
      }
    }
    json.writeEndObject();
  }

  /** Check that the fields which the message lacks are of a later schema, and not a sign of another message. */
  private void checkUnknown(Message of) throws Undecodable {
    Map unknown = of.getUnknownFields().asMap();
    for (Iterator numbers = unknown.keySet().iterator(); numbers.hasNext();) {
      int number = ((Integer) numbers.next()).intValue();
      Descriptors.Descriptor type = of.getDescriptorForType();
      Descriptors.FieldDescriptor known = type.findFieldByNumber(number);
      if (known != null && known.getType() == Descriptors.FieldDescriptor.Type.ENUM) {
        throw new Undecodable("the enum of " + known.getFullName() + " has no such number, or its bytes are another type's");
      }
      if (known != null) {
        throw new Undecodable("field " + number + " is not of the type of " + known.getFullName());
      }
      if (!unknownFields) {
        throw new Undecodable("it has a field " + number + ", and " + type.getFullName() + " has none");
      }
    }
  }

  private static int deeper(int depth) throws Undecodable {
    if (depth >= JsonOutput.DEPTH_MAX) {
      throw new Undecodable("nested deeper than " + JsonOutput.DEPTH_MAX);
    }
    return depth + 1;
  }

  private void field(Descriptors.FieldDescriptor field, Object value, int depth) throws IOException {
    if (field.isMapField()) {
      map(field, (List) value, deeper(depth));
    } else if (field.isRepeated()) {
      int inside = deeper(depth);
      List items = (List) value;
      json.writeStartArray();
      for (int i = 0; i < items.size(); i++) {
        single(field, items.get(i), inside);
      }
      json.writeEndArray();
    } else {
      single(field, value, depth);
    }
  }

  /** Write a map. Of several entries of a key, the last one holds, as for Protobuf's own readers. */
  private void map(Descriptors.FieldDescriptor field, List entries, int depth) throws IOException {
    Descriptors.FieldDescriptor key = field.getMessageType().findFieldByNumber(1);
    Descriptors.FieldDescriptor value = field.getMessageType().findFieldByNumber(2);
    Map last = new LinkedHashMap();
    for (int i = 0; i < entries.size(); i++) {
      Message entry = (Message) entries.get(i);
      checkUnknown(entry);
      Object name = entry.getField(key);
      last.put(isUnsigned(key) ? unsigned(name) : name.toString(), entry.getField(value));
    }
    json.writeStartObject();
    for (Iterator each = last.entrySet().iterator(); each.hasNext();) {
      Map.Entry entry = (Map.Entry) each.next();
      json.writeFieldName((String) entry.getKey());
      single(value, entry.getValue(), depth);
    }
    json.writeEndObject();
  }

  private void single(Descriptors.FieldDescriptor field, Object value, int depth) throws IOException {
    if (value instanceof String) {
      json.writeString((String) value);
    } else if (value instanceof Long || value instanceof Integer) {
      if (isUnsigned(field)) {
        json.writeNumber(unsigned(value));
      } else {
        json.writeNumber(((Number) value).longValue());
      }
    } else if (value instanceof Message) {
      message((Message) value, depth);
    } else if (value instanceof Boolean) {
      json.writeBoolean(((Boolean) value).booleanValue());
    } else if (value instanceof Double) {
      json.writeNumber(((Double) value).doubleValue());
    } else if (value instanceof Float) {
      json.writeNumber(((Float) value).floatValue());
    } else if (value instanceof ByteString) {
      out.base64(((ByteString) value).toByteArray());
    } else {
      enumeration((Descriptors.EnumValueDescriptor) value);
    }
  }

  private void enumeration(Descriptors.EnumValueDescriptor value) throws IOException {
    if (value.getType().getFullName().equals("google.protobuf.NullValue")) {
      json.writeNull();
    } else if (value.getIndex() < 0) { // of a later schema: it has no name here
      json.writeNumber(value.getNumber());
    } else {
      json.writeString(value.getName());
    }
  }

  private static boolean isUnsigned(Descriptors.FieldDescriptor field) {
    Descriptors.FieldDescriptor.Type type = field.getType();
    return type == Descriptors.FieldDescriptor.Type.UINT64 || type == Descriptors.FieldDescriptor.Type.UINT32
        || type == Descriptors.FieldDescriptor.Type.FIXED64 || type == Descriptors.FieldDescriptor.Type.FIXED32;
  }

  private static String unsigned(Object number) {
    return number instanceof Integer ? Integer.toUnsignedString(((Integer) number).intValue())
        : Long.toUnsignedString(((Long) number).longValue());
  }

  /** Write a message that has a JSON form of its own. Return false for another one. */
  private boolean wellKnown(String name, Message of, int depth) throws IOException {
    if (name.equals("Timestamp")) {
      timestamp(number(of, 1), number(of, 2));
    } else if (name.equals("Duration")) {
      duration(number(of, 1), number(of, 2));
    } else if (name.equals("Struct") || name.equals("ListValue")) {
      field(of.getDescriptorForType().findFieldByNumber(1), part(of, 1), depth);
    } else if (name.equals("Value")) {
      value(of, depth);
    } else if (name.equals("Any")) {
      deeper(depth);
      json.writeStartObject();
      json.writeFieldName("@type");
      json.writeString((String) part(of, 1));
      json.writeFieldName("value");
      out.base64(((ByteString) part(of, 2)).toByteArray());
      json.writeEndObject();
    } else if (name.endsWith("Value") && of.getDescriptorForType().getFields().size() == 1) { // a wrapper
      single(of.getDescriptorForType().findFieldByNumber(1), part(of, 1), depth);
    } else {
      return false;
    }
    return true;
  }

  private static Object part(Message of, int number) {
    return of.getField(of.getDescriptorForType().findFieldByNumber(number));
  }

  private static long number(Message of, int number) {
    return ((Number) part(of, number)).longValue();
  }

  private void value(Message of, int depth) throws IOException {
    Map set = of.getAllFields();
    if (set.isEmpty()) {
      throw new Undecodable("a google.protobuf.Value without a value");
    }
    Map.Entry only = (Map.Entry) set.entrySet().iterator().next();
    if (only.getValue() instanceof Double) {
      double number = ((Double) only.getValue()).doubleValue();
      if (Double.isNaN(number) || Double.isInfinite(number)) {
        throw new Undecodable("a google.protobuf.Value of " + number + ", which JSON does not have");
      }
    }
    single((Descriptors.FieldDescriptor) only.getKey(), only.getValue(), depth);
  }

  private void timestamp(long seconds, long nanos) throws IOException {
    if (seconds < SECONDS_MIN || seconds > SECONDS_MAX || nanos < 0 || nanos > NANOS_MAX) {
      throw new Undecodable("a google.protobuf.Timestamp that is none: " + seconds + " s, " + nanos + " ns");
    }
    out.timestamp(seconds, nanos);
  }

  private void duration(long seconds, long nanos) throws IOException {
    boolean same = seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0);
    if (Math.abs(seconds) > DURATION_SECONDS_MAX || Math.abs(nanos) > NANOS_MAX || !same) {
      throw new Undecodable("a google.protobuf.Duration that is none: " + seconds + " s, " + nanos + " ns");
    }
    out.duration(seconds, nanos);
  }
}
