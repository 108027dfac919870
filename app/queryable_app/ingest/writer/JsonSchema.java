package io.queryabletopics;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.networknt.schema.AbsoluteIri;
import com.networknt.schema.Error;
import com.networknt.schema.ExecutionConfig;
import com.networknt.schema.ExecutionContext;
import com.networknt.schema.FailFastAssertionException;
import com.networknt.schema.Schema;
import com.networknt.schema.SchemaLocation;
import com.networknt.schema.SchemaRegistryConfig;
import com.networknt.schema.SpecificationVersion;
import com.networknt.schema.path.PathType;
import com.networknt.schema.regex.RegularExpression;
import com.networknt.schema.regex.RegularExpressionFactory;
import com.networknt.schema.regex.RegularExpressions;
import com.networknt.schema.resource.InputStreamSource;
import com.networknt.schema.resource.SchemaLoader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * Check JSON documents against one JSON Schema of the drafts 4, 6, 7, 2019-09 or 2020-12.
 *
 * The time of a check is bounded by its steps, and not by a clock, so that each replica judges a record alike: a step is a
 * keyword that is applied, or a character that a regular expression looks at. Nothing is fetched: a schema refers to
 * itself, to the given texts, and to the meta-schemas of the drafts, which the library has.
 */
final class JsonSchema {
  private static final int STEPS_MIN = 1000000;
  private static final int STEPS_PER_BYTE = 10;
  private static final int PATTERN_COST_MAX = 100000;
  private static final int PATTERN_COST_OF_STEP = 64;
  private static final int REASON_CHARACTERS_MAX = 300;
  private static final String BASE = "schema:/";
  private static final ObjectMapper JSON = new ObjectMapper(Checks.jsonFactory());

  private final ExecutionConfig config;
  private final Schema schema;
  private long stepsLeft;
  private String refusedExpression; // in this check, for which the library has no reason of its own

  /**
   * @param text  the schema
   * @param texts the schemas that it refers to, by the names that it has for them
   */
  JsonSchema(String text, Map texts) {
    ExecutionConfig.Builder execution = ExecutionConfig.builder();
    execution.locale(Locale.ROOT);
    execution.failFast(true);
    config = execution.build();
    SchemaRegistryConfig.Builder settings = SchemaRegistryConfig.builder();
    settings.locale(Locale.ROOT);
    settings.pathType(PathType.JSON_POINTER);
    settings.regularExpressionFactory(new Expressions());
    com.networknt.schema.SchemaRegistry library =
        com.networknt.schema.SchemaRegistry.builder(
                com.networknt.schema.SchemaRegistry.withDefaultDialect(SpecificationVersion.DRAFT_7))
            .defaultDialectId(SpecificationVersion.DRAFT_7.getDialectId())
            .schemaLoader(new Given(texts))
            .schemaRegistryConfig(settings.build())
            .build();
    stepsLeft = STEPS_MIN;
    try {
      JsonNode node = JSON.readTree(text);
      checkByDraft(library, node);
      schema = library.getSchema(SchemaLocation.of(BASE + "schema.json"), node);
      String[] samples = {"null", "true", "0", "\"\"", "[]", "{}"};
      for (int i = 0; i < samples.length; i++) { // one of them follows references that have no end
        problem(schema, JSON.readTree(samples[i]), STEPS_MIN);
      }
      schema.initializeValidators(); // resolves every reference
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException("it is not JSON");
    } catch (StackOverflowError e) {
      throw new IllegalArgumentException("it refers to itself without end, or is nested too deeply");
    } catch (Steps e) {
      throw new IllegalArgumentException("its references take more than " + STEPS_MIN + " steps to follow");
    } catch (RuntimeException e) { // of the library, which has several
      throw new IllegalArgumentException(reason(e));
    }
  }

  /** Throw Undecodable, with the first place in the document that does not fit and why. */
  void check(byte[] json) throws IOException {
    String problem;
    try {
      problem = problem(schema, JSON.readTree(json), STEPS_MIN + (long) STEPS_PER_BYTE * json.length);
    } catch (Steps e) {
      throw new Undecodable("it takes too many steps to check: more than " + STEPS_MIN + ", and " + STEPS_PER_BYTE + " for each byte");
    } catch (StackOverflowError e) {
      throw new Undecodable("its schema refers to itself too deeply, or a regular expression does not come to an end");
    } catch (RuntimeException e) {
      throw new Undecodable(reason(e));
    }
    if (problem != null) {
      throw new Undecodable(problem);
    }
  }

  private void checkByDraft(com.networknt.schema.SchemaRegistry library, JsonNode node) {
    JsonNode named = (JsonNode) node.path("$schema");
    String draft = named.isTextual() ? named.asText() : SpecificationVersion.DRAFT_7.getDialectId();
    if (!SpecificationVersion.fromDialectId(draft.endsWith("#") ? draft : draft + "#").isPresent()
        && !SpecificationVersion.fromDialectId(draft).isPresent()) {
      throw new IllegalArgumentException(bounded("$schema names " + draft + ", which is none of the drafts 4, 6, 7, 2019-09 and 2020-12"));
    }
    String problem = problem(library.getSchema(SchemaLocation.of(draft)), node, 10L * STEPS_MIN);
    if (problem != null) {
      throw new IllegalArgumentException(problem);
    }
  }

  private String problem(Schema of, JsonNode node, long steps) {
    stepsLeft = steps;
    refusedExpression = null;
    ExecutionContext context = new ExecutionContext(config) {
      public void evaluationPathAddLast(String keyword) {
        step();
        super.evaluationPathAddLast(keyword);
      }
    };
    try {
      of.validate(context, node);
    } catch (FailFastAssertionException e) {
      return sentence(e.getError());
    }
    List errors = context.getErrors();
    return errors.isEmpty() ? null : sentence((Error) errors.get(0));
  }

  private void step() {
    steps(1);
  }

  private void steps(long count) {
    stepsLeft -= count;
    if (stepsLeft < 0) {
      throw new Steps();
    }
  }

  private String sentence(Error error) {
    String path = error.getInstanceLocation().toString();
    String message = refusedExpression == null ? error.getMessage() : refusedExpression;
    return bounded((path.length() == 0 ? "" : "at " + bounded(path) + ": ") + message);
  }

  private static String reason(RuntimeException e) {
    Throwable cause = e.getCause() == null ? e : e.getCause();
    return bounded(cause.getMessage() == null ? cause.getClass().getSimpleName() : cause.getMessage());
  }

  private static String bounded(String text) {
    return text.length() <= REASON_CHARACTERS_MAX ? text : text.substring(0, REASON_CHARACTERS_MAX) + "…";
  }

  /** Report that a check has had all its steps. */
  private static final class Steps extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public synchronized Throwable fillInStackTrace() {
      return this;
    }
  }

  /** Have the texts that were given with a schema, and nothing of the class path or of the network. */
  private static final class Given extends SchemaLoader {
    private final Map texts;

    Given(Map texts) {
      super(Collections.EMPTY_LIST, Collections.EMPTY_LIST);
      this.texts = texts;
    }

    public InputStreamSource getSchemaResource(AbsoluteIri iri) {
      String name = iri.toString();
      String found = (String) texts.get(name);
      for (Iterator each = texts.entrySet().iterator(); found == null && each.hasNext();) {
        Map.Entry entry = (Map.Entry) each.next();
        found = name.endsWith("/" + entry.getKey()) ? (String) entry.getValue() : null;
      }
      if (found == null) {
        InputStreamSource draft = name.matches("https?://json-schema\\.org/.*") ? super.getSchemaResource(iri) : null;
        if (draft == null) {
          String shown = name.startsWith(BASE) ? name.substring(BASE.length()) : name;
          throw new IllegalArgumentException(bounded("it refers to " + shown + ", which is not there; nothing is fetched"));
        }
        return draft;
      }
      return new Text(found);
    }
  }

  private static final class Text implements InputStreamSource {
    private final String text;

    Text(String text) {
      this.text = text;
    }

    public InputStream getInputStream() {
      return new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8));
    }
  }

  /** Make regular expressions whose characters count as steps. */
  private final class Expressions implements RegularExpressionFactory {
    public RegularExpression getRegularExpression(String regex) {
      String java = RegularExpressions.replaceLongformCharacterProperties(RegularExpressions.replaceDollarAnchors(inClasses(regex)));
      long cost = PatternCost.of(java);
      String wrong = "repeats more than " + PATTERN_COST_MAX + " parts";
      if (cost <= PATTERN_COST_MAX) {
        try {
          return new Expression(Pattern.compile(java), cost / PATTERN_COST_OF_STEP);
        } catch (PatternSyntaxException e) {
          wrong = "cannot be read: " + e.getDescription();
        }
      }
      refusedExpression = bounded("the regular expression " + bounded(regex) + " " + wrong);
      throw new IllegalArgumentException(refusedExpression);
    }
  }

  /** Escape a bracket that opens within a class: JSON Schema's expressions have no class in a class, and Java's have. */
  private static String inClasses(String regex) {
    StringBuilder escaped = new StringBuilder();
    boolean inClass = false;
    for (int i = 0; i < regex.length(); i++) {
      char c = regex.charAt(i);
      if (c == '\\' && i + 1 < regex.length()) {
        escaped.append(c).append(regex.charAt(++i));
        continue;
      }
      if (c == '[' && inClass) {
        escaped.append('\\');
      }
      inClass = c == '[' || inClass && c != ']';
      escaped.append(c);
    }
    return escaped.toString();
  }

  private final class Expression implements RegularExpression {
    private final Pattern pattern;
    private final long weight; // in steps, of each character beyond the first step

    Expression(Pattern pattern, long weight) {
      this.pattern = pattern;
      this.weight = weight;
    }

    public boolean matches(String value) {
      steps(weight * (value.length() + 1L)); // a part without characters is tried at each place
      return pattern.matcher(new Counted(value, 1 + weight)).find();
    }
  }

  private final class Counted implements CharSequence {
    private final String text;
    private final long weight;

    Counted(String text, long weight) {
      this.text = text;
      this.weight = weight;
    }

    public char charAt(int index) {
      steps(weight);
      return text.charAt(index);
    }

    public int length() {
      return text.length();
    }

    public CharSequence subSequence(int from, int to) {
      return new Counted(text.substring(from, to), weight);
    }

    public String toString() {
      return text;
    }
  }
}
