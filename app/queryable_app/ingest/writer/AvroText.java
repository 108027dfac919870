package io.queryabletopics;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.io.Decoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.ResolvingDecoder;
import org.apache.avro.util.Utf8;

/** Turn records of one writer's schema into JSON, as a reader's schema has them. Not for several threads at a time. */
final class AvroText {
  private final Schema writer;
  private final Schema reader;
  private final AvroBytes bytes = new AvroBytes();
  private ResolvingDecoder resolver; // null: both schemas are the same
  private Decoder in;
  private JsonOutput out;
  private JsonGenerator json;

  AvroText(Schema writer, Schema reader) {
    this.writer = writer;
    this.reader = reader;
  }

  byte[] json(byte[] record, int from) throws IOException {
    try {
      bytes.reset(record, from);
      if (writer.equals(reader)) {
        in = bytes;
      } else if (resolver == null) {
        in = resolver = DecoderFactory.get().resolvingDecoder(writer, reader, bytes);
      } else {
        resolver.configure(bytes);
      }
      out = new JsonOutput();
      json = out.json;
      value(reader, 0);
      if (resolver != null) {
        resolver.drain();
      }
      bytes.end();
      return out.finish();
    } catch (AvroRuntimeException e) { // resolution failed: a field without a default, types that do not match
      throw failed(e.getMessage());
    } catch (RuntimeException e) { // an index of an enum, say
      throw failed("not Avro of this schema");
    } catch (StackOverflowError e) {
      throw failed("nested deeper than " + JsonOutput.DEPTH_MAX);
    } catch (Undecodable e) {
      throw failed(e.getMessage());
    }
  }

  private Undecodable failed(String reason) {
    resolver = null; // it may be in the middle of a default
    return new Undecodable(reason);
  }

  private void value(Schema schema, int depth) throws IOException {
    Schema.Type type = schema.getType();
    if (type == Schema.Type.STRING) {
      text();
    } else if (type == Schema.Type.LONG || type == Schema.Type.INT) {
      number(schema.getLogicalType(), type == Schema.Type.INT ? in.readInt() : in.readLong());
    } else if (type == Schema.Type.UNION) {
      value(branch(schema.getTypes(), in.readIndex()), depth);
    } else if (type == Schema.Type.NULL) {
      in.readNull();
      json.writeNull();
    } else if (type == Schema.Type.RECORD) {
      record(schema, deeper(depth));
    } else if (type == Schema.Type.BOOLEAN) {
      json.writeBoolean(in.readBoolean());
    } else if (type == Schema.Type.DOUBLE) {
      json.writeNumber(in.readDouble());
    } else if (type == Schema.Type.FLOAT) {
      json.writeNumber(in.readFloat());
    } else if (type == Schema.Type.ENUM) {
      List symbols = schema.getEnumSymbols();
      json.writeString((String) symbols.get(in.readEnum()));
    } else if (type == Schema.Type.ARRAY) {
      array(schema.getElementType(), deeper(depth));
    } else if (type == Schema.Type.MAP) {
      map(schema.getValueType(), deeper(depth));
    } else if (type == Schema.Type.BYTES) {
      ByteBuffer read = in.readBytes(null);
      byte[] data = new byte[read.remaining()];
      read.get(data);
      binary(schema.getLogicalType(), data);
    } else {
      byte[] data = new byte[schema.getFixedSize()];
      in.readFixed(data, 0, data.length);
      binary(schema.getLogicalType(), data);
    }
  }

  private static int deeper(int depth) throws Undecodable {
    if (depth >= JsonOutput.DEPTH_MAX) {
      throw new Undecodable("nested deeper than " + JsonOutput.DEPTH_MAX);
    }
    return depth + 1;
  }

  private static Schema branch(List types, int index) throws Undecodable {
    if (index < 0 || index >= types.size()) {
      throw new Undecodable("not Avro of this schema: a union has no branch " + index);
    }
    return (Schema) types.get(index);
  }

  private void record(Schema schema, int depth) throws IOException {
    json.writeStartObject();
    if (resolver == null) {
      List fields = schema.getFields();
      for (int i = 0; i < fields.size(); i++) {
        field((Schema.Field) fields.get(i), depth);
      }
    } else {
      Schema.Field[] fields = resolver.readFieldOrder(); // as the writer has them, then those with a default
      for (int i = 0; i < fields.length; i++) {
        field(fields[i], depth);
      }
    }
    json.writeEndObject();
  }

  private void field(Schema.Field field, int depth) throws IOException {
    json.writeFieldName(field.name());
    value(field.schema(), depth);
  }

  private void array(Schema element, int depth) throws IOException {
    json.writeStartArray();
    for (long count = in.readArrayStart(); count > 0; count = in.arrayNext()) {
      for (long i = 0; i < count; i++) {
        value(element, depth);
      }
    }
    json.writeEndArray();
  }

  private void map(Schema element, int depth) throws IOException {
    Set names = new HashSet();
    json.writeStartObject();
    for (long count = in.readMapStart(); count > 0; count = in.mapNext()) {
      for (long i = 0; i < count; i++) {
        String name = in.readString(null).toString();
        if (!names.add(name)) {
          throw new Undecodable("a map has a key twice");
        }
        json.writeFieldName(name);
        value(element, depth);
      }
    }
    json.writeEndObject();
  }

  private void text() throws IOException {
    Utf8 text = in.readString(null);
    json.writeUTF8String(text.getBytes(), 0, text.getByteLength());
  }

  private void number(LogicalType logical, long number) throws IOException {
    String name = logical == null ? "" : logical.getName();
    if (name.equals("")) {
      json.writeNumber(number);
    } else if (name.equals("date")) {
      out.date(number);
    } else if (name.equals("time-millis")) {
      out.time(number, 3);
    } else if (name.equals("time-micros")) {
      out.time(number, 6);
    } else if (name.equals("timestamp-millis")) {
      out.timestamp(number, 3, "Z");
    } else if (name.equals("timestamp-micros")) {
      out.timestamp(number, 6, "Z");
    } else if (name.equals("timestamp-nanos")) {
      out.timestamp(number, 9, "Z");
    } else if (name.equals("local-timestamp-millis")) {
      out.timestamp(number, 3, "");
    } else if (name.equals("local-timestamp-micros")) {
      out.timestamp(number, 6, "");
    } else if (name.equals("local-timestamp-nanos")) {
      out.timestamp(number, 9, "");
    } else {
      json.writeNumber(number);
    }
  }

  private void binary(LogicalType logical, byte[] data) throws IOException {
    String name = logical == null ? "" : logical.getName();
    if (name.equals("decimal")) {
      out.decimal(data, ((LogicalTypes.Decimal) logical).getScale());
    } else if (name.equals("uuid") && data.length == 16) {
      ByteBuffer halves = ByteBuffer.wrap(data);
      json.writeString(new UUID(halves.getLong(), halves.getLong()).toString());
    } else {
      out.base64(data);
    }
  }
}
