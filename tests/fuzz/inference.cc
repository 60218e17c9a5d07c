// A request of the Open Inference Protocol, as text. An accepted request keeps the limits, and
// means the same with its tensors as raw bytes; an error begins with a name. Input: a byte that
// chooses the model, the call and the limits; the message in protobuf's text format.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "google/protobuf/text_format.h"
#include "server/api/oip/request.h"
#include "tests/fuzz/target.h"
#include "tests/support/fake_encoder_runner.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/same_bits.h"

namespace aft::fuzz {

// A token is in memory three times: as eight bytes of a tensor, as a number, and as a part of the
// request.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 512};

namespace {

using inference::ModelInferRequest;
using server::LimitsConfig;
using server::ServedModel;
using server::oip::Inference;

constexpr int64_t kVocabSize = 257;
constexpr int64_t kMostBatchTokens = 64;

ServedModel LanguageModel() {
  ServedModel model;
  model.config.name = "m";
  model.info.vocab_size = kVocabSize;
  model.tokenizer = std::make_shared<FakeTokenizer>();
  return model;
}

ServedModel Encoder(const FakeEncoderRunner::Options& fake) {
  static prometheus::Registry registry;
  static server::ModelMetrics metrics(registry, "m");
  server::EngineOptions options;
  options.model.name = "m";
  options.model.max_batch_rows = 4;
  options.model.max_batch_tokens = kMostBatchTokens;
  const auto control = std::make_shared<FakeEncoderControl>();
  auto runner = std::make_unique<FakeEncoderRunner>(fake, control);
  ServedModel model = LanguageModel();
  model.config = options.model;
  model.info = runner->info();
  model.input_width = runner->input_width();
  model.vector_width = runner->width();
  if (fake.vocab_size == 0 || fake.max_image_width > 0) model.tokenizer = nullptr;
  auto engine = server::EncodeEngine::Create(options, std::move(runner), metrics);
  AFT_CHECK(engine.ok());
  model.encode = *std::move(engine);
  return model;
}

ServedModel BareMixer(int64_t max_image_width) {
  FakeEncoderRunner::Options fake;
  fake.vocab_size = 0;
  fake.max_seq_len = 32;
  fake.max_image_width = max_image_width;
  fake.causal = max_image_width == 0;
  fake.forms = {.pairs = true, .sources = true, .free_lengths = !fake.causal};
  return Encoder(fake);
}

ServedModel ImageClassifier() {
  FakeEncoderRunner::Options fake;
  fake.vocab_size = 5;
  fake.max_seq_len = 32;
  fake.max_image_width = 7;
  fake.labels = {"a", "b", "c"};
  return Encoder(fake);
}

template <typename Values>
std::string Raw(const Values& values) {
  using Value = typename Values::value_type;
  std::string bytes;
  for (const Value value : values) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

std::string Raw(const inference::InferTensorContents& contents) {
  std::string strings;
  for (const std::string& value : contents.bytes_contents()) {
    const auto size = static_cast<uint32_t>(value.size());
    strings.append(reinterpret_cast<const char*>(&size), sizeof(size));
    strings += value;
  }
  return Raw(contents.bool_contents()) + Raw(contents.int_contents()) +
         Raw(contents.int64_contents()) + Raw(contents.uint_contents()) +
         Raw(contents.uint64_contents()) + Raw(contents.fp32_contents()) +
         Raw(contents.fp64_contents()) + strings;
}

// Returns `message` with raw bytes instead of typed contents.
ModelInferRequest AsRaw(ModelInferRequest message) {
  for (auto& input : *message.mutable_inputs()) {
    message.add_raw_input_contents(Raw(input.contents()));
    input.clear_contents();
  }
  return message;
}

struct Texts {
  std::vector<EncoderInput> rows;
  size_t max_tokens = 0;
};

Texts TextsOf(const Inference& inference) {
  const server::Work& work = inference.work;
  if (const auto* generation = std::get_if<server::GenerationRequest>(&work)) {
    return {TextInputs({generation->prompt}), static_cast<size_t>(generation->stop.max_tokens)};
  }
  if (const auto* scorings = std::get_if<std::vector<server::ScoringRequest>>(&work)) {
    AFT_CHECK(scorings->size() == 1);
    return {TextInputs({scorings->front().text})};
  }
  const auto& encodings = std::get<std::vector<server::EncodingRequest>>(work);
  return {{encodings.begin(), encodings.end()}};
}

bool Same(const EncoderInput& a, const EncoderInput& b) {
  return a.text == b.text && SameBits(a.vectors, b.vectors) && SameBits(a.mask, b.mask) &&
         a.image_width == b.image_width && SameBits(a.keys, b.keys) &&
         SameBits(a.values, b.values) && (a.pairs == nullptr) == (b.pairs == nullptr) &&
         (a.pairs == nullptr || SameBits(*a.pairs, *b.pairs));
}

void CheckVectors(const EncoderInput& row, const ServedModel& model) {
  const int64_t tokens = row.tokens(model.input_width);
  AFT_CHECK(row.text.empty() && tokens >= 1);
  AFT_CHECK(row.vectors.size() == size_t(tokens * model.input_width));
}

// Checks a request with vectors, or with an image of grey levels or of vectors.
void CheckForm(const EncoderInput& row, const ServedModel& model) {
  const int64_t tokens = row.tokens(model.input_width);
  AFT_CHECK(model.info.max_seq_len == 0 || tokens <= model.info.max_seq_len);
  AFT_CHECK(CheckForms(model.info.forms, row, model.input_width).ok());
  AFT_CHECK(row.step_tokens(model.input_width) <= kMostBatchTokens);
  for (const float key : row.mask) AFT_CHECK(key <= std::numeric_limits<float>::max());
  AFT_CHECK(row.image_width <= model.info.max_image_width);
  AFT_CHECK((row.image_width > 0) == (model.info.max_image_width > 0));
  AFT_CHECK(row.image_width == 0 || tokens % row.image_width == 0);
}

void CheckAccepted(const Inference& inference, const LimitsConfig& limits,
                   const ServedModel& model) {
  const bool encoder = model.encode != nullptr;
  const Texts texts = TextsOf(inference);
  AFT_CHECK(std::holds_alternative<std::vector<server::EncodingRequest>>(inference.work) ==
            encoder);
  AFT_CHECK(inference.answer != nullptr && inference.timeout.count() >= 0);
  AFT_CHECK(!texts.rows.empty() && texts.max_tokens <= size_t(limits.max_max_tokens));
  size_t ids = 0;
  size_t bytes = 0;
  const std::vector<float>* pairs = nullptr;  // shared by rows that follow each other
  for (const EncoderInput& row : texts.rows) {
    ids += row.text.size();
    bytes += (row.vectors.size() + row.keys.size() + row.values.size() + row.mask.size()) *
             sizeof(float);
    if (row.pairs != nullptr && row.pairs.get() != pairs)
      bytes += row.pairs->size() * sizeof(float);
    pairs = row.pairs.get();
    if (encoder) CheckForm(row, model);
    if (!row.vectors.empty()) {
      CheckVectors(row, model);
      continue;
    }
    AFT_CHECK(!row.text.empty());
    AFT_CHECK(row.image_width > 0 || row.text.size() <= size_t(limits.max_prompt_tokens));
    for (const TokenId id : row.text) AFT_CHECK(id >= 0 && id < model.info.vocab_size);
  }
  // A generation is also charged for its stop strings, bad words and rules.
  const bool generates = std::holds_alternative<server::GenerationRequest>(inference.work);
  AFT_CHECK(generates ? ids <= inference.tokens : ids == inference.tokens);
  AFT_CHECK(bytes == inference.tensor_bytes);
}

void CheckError(const absl::Status& status) {
  constexpr size_t kMostBytes = 512;  // of the status, in a header
  const absl::string_view message = status.message();
  const size_t name_end = message.find(": ");
  AFT_CHECK(name_end != absl::string_view::npos);
  AFT_CHECK(absl::IsInvalidArgument(status));
  AFT_CHECK(message.size() <= kMostBytes && IsMessage(message));
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::fuzz;
  [[maybe_unused]] static google::protobuf::LogHandler* const before =
      google::protobuf::SetLogHandler(nullptr);
  static const ServedModel models[] = {LanguageModel(), Encoder({.forms = {.pairs = true}}),
                                       ImageClassifier(), BareMixer(0), BareMixer(7)};
  if (size < 1) return;
  const bool encoder = data[0] % 2 == 1;
  const bool bare = data[0] / 8 % 2 == 1;
  const bool images = data[0] / 64 % 2 == 1;
  const ServedModel& model = models[!encoder ? 0 : (bare ? 3 : 1) + (images ? 1 : 0)];
  const auto reply =
      data[0] / 2 % 2 == 1 ? server::oip::Reply::kStream : server::oip::Reply::kUnary;
  LimitsConfig limits;
  if (data[0] / 4 % 2 == 1) {
    limits.max_prompt_bytes = 8;
    limits.max_prompt_tokens = 6;
    limits.max_max_tokens = 300;
  }
  ModelInferRequest message;
  google::protobuf::TextFormat::Parser parser;
  parser.SetRecursionLimit(16);
  // protobuf checks strings for UTF-8 only in the binary format, not in text.
  if (!parser.ParseFromString(std::string(AsText(data + 1, size - 1)), &message) ||
      !message.ParseFromString(message.SerializeAsString())) {
    return;
  }
  const auto inference = DecodeInference(message, limits, model, reply);
  if (!inference.ok()) {
    CheckError(inference.status());
    return;
  }
  CheckAccepted(*inference, limits, model);
  if (message.raw_input_contents_size() > 0) return;
  const auto raw = DecodeInference(AsRaw(message), limits, model, reply);
  AFT_CHECK(raw.ok());
  const std::vector<EncoderInput> rows = TextsOf(*raw).rows;
  const std::vector<EncoderInput> typed = TextsOf(*inference).rows;
  AFT_CHECK(std::equal(rows.begin(), rows.end(), typed.begin(), typed.end(), Same));
  AFT_CHECK(TextsOf(*raw).max_tokens == TextsOf(*inference).max_tokens);
  AFT_CHECK(raw->streams == inference->streams && raw->timeout == inference->timeout);
}
