package io.queryabletopics;

import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;

/** Check JSON values against a JSON Schema: bare ones, or those that begin with the id of their schema in a registry. */
public final class JsonSchemaDecoder implements ValueDecoder {
  private static final long serialVersionUID = 1L;
  private static final Integer OWN = Integer.valueOf(0);

  private final String text;
  private final SchemaRegistry registry;
  private transient Map schemas; // by id; of a schema that cannot be used, the reason

  /**
   * @param text     the schema of every value; null: each has the one that it names
   * @param registry has the schemas that records name; null: records are bare
   */
  public JsonSchemaDecoder(String text, SchemaRegistry registry) {
    this.text = text;
    this.registry = registry;
  }

  public void check() throws IOException {
    if (text != null) {
      schema(OWN);
    }
  }

  public synchronized byte[] decode(byte[] value) throws IOException {
    Integer id = OWN;
    byte[] json = value;
    if (registry != null) {
      int own = SchemaRegistry.id(value);
      id = text == null ? Integer.valueOf(own) : OWN;
      json = Arrays.copyOfRange(value, SchemaRegistry.FRAME, value.length);
    }
    String problem = Checks.jsonProblem(json);
    if (problem != null) {
      throw new Undecodable(problem);
    }
    schema(id).check(json);
    return json;
  }

  private JsonSchema schema(Integer id) throws IOException {
    if (schemas == null) {
      schemas = new HashMap();
    }
    Object known = schemas.get(id);
    if (known == null) {
      try {
        known = text == null ? registry.json(id.intValue()) : new JsonSchema(text, Collections.EMPTY_MAP);
      } catch (IllegalArgumentException e) {
        known = text == null ? "schema " + id + " of the registry cannot be used: " + e.getMessage() : e.getMessage();
      }
      schemas.put(id, known);
    }
    if (known instanceof String) {
      throw new Undecodable((String) known);
    }
    return (JsonSchema) known;
  }
}
