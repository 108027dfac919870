package io.queryabletopics;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;

/** Decode Avro values: bare ones of one schema, or those that begin with the id of their schema in a registry. */
public final class AvroDecoder implements ValueDecoder {
  private static final long serialVersionUID = 1L;

  private final String readerText;
  private final SchemaRegistry registry;
  private transient Schema reader;
  private transient Map texts; // by the id of the writer's schema; 0 for bare values

  /**
   * @param readerText the schema that every record is read as; null: each is read as it was written
   * @param registry   has the writers' schemas; null: every record was written with the reader's schema
   */
  public AvroDecoder(String readerText, SchemaRegistry registry) {
    this.readerText = readerText;
    this.registry = registry;
  }

  public void check() throws IOException {
    reader();
  }

  public synchronized byte[] decode(byte[] value) throws IOException {
    int id = registry == null ? 0 : SchemaRegistry.id(value);
    if (texts == null) {
      texts = new HashMap();
    }
    AvroText text = (AvroText) texts.get(Integer.valueOf(id));
    if (text == null) {
      Schema own = reader();
      Schema writer = registry == null ? own : registry.avro(id);
      text = new AvroText(writer, own == null ? writer : own);
      texts.put(Integer.valueOf(id), text);
    }
    return text.json(value, registry == null ? 0 : SchemaRegistry.FRAME);
  }

  private Schema reader() {
    if (reader == null && readerText != null) {
      reader = new Schema.Parser().parse(readerText);
    }
    return reader;
  }
}
