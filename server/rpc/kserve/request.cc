#include "server/rpc/kserve/request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/encode_codec.h"
#include "server/rpc/generate_codec.h"
#include "server/rpc/kserve/model_tensors.h"
#include "server/rpc/kserve/options.h"
#include "server/rpc/kserve/tensors.h"
#include "server/rpc/score_codec.h"

namespace aft::server::kserve {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using Json = nlohmann::json;

constexpr size_t kMaxParameterNameBytes = 64;
constexpr char kParameters[] = "parameters";
constexpr char kSamplingParameters[] = "sampling_parameters";

// A request, looked at by the names of what it holds.
struct Source {
  const LimitsConfig& limits;
  const ServedModel& model;
  Call call;
  std::vector<InputTensor> inputs;
  const google::protobuf::Map<std::string, InferParameter>& parameters;
  AnswerForm form{};
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;

  // Null: it is not there.
  const InputTensor* Find(absl::string_view name) const {
    const auto found = std::find_if(inputs.begin(), inputs.end(), [name](const InputTensor& input) {
      return input.name == name;
    });
    return found == inputs.end() ? nullptr : &*found;
  }

  // False when it is not there.
  absl::StatusOr<bool> Flag(absl::string_view name, bool unset = false) const {
    const InputTensor* const tensor = Find(name);
    return tensor == nullptr ? absl::StatusOr<bool>(unset) : ReadBool(*tensor);
  }
};

std::string ParameterPath(absl::string_view name) { return absl::StrCat(kParameters, ".", name); }

absl::StatusOr<uint64_t> ReadCount(absl::string_view name, const InferParameter& parameter) {
  if (parameter.has_uint64_param()) return parameter.uint64_param();
  if (parameter.has_int64_param() && parameter.int64_param() >= 0) {
    return static_cast<uint64_t>(parameter.int64_param());
  }
  return BadField(ParameterPath(name), "must be an integer of at least 0");
}

absl::StatusOr<bool> ReadFlag(absl::string_view name, const InferParameter& parameter) {
  if (parameter.has_bool_param()) return parameter.bool_param();
  return BadField(ParameterPath(name), "must be a boolean");
}

// What the protocol means by a sequence, requests in an order, is not to be had.
absl::Status CheckNoSequence(absl::string_view name, const InferParameter& parameter) {
  const bool none = name == "sequence_id"
                        ? (parameter.has_int64_param() && parameter.int64_param() == 0) ||
                              (parameter.has_uint64_param() && parameter.uint64_param() == 0) ||
                              (parameter.has_string_param() && parameter.string_param().empty())
                        : parameter.has_bool_param() && !parameter.bool_param();
  if (none) return absl::OkStatus();
  return BadField(ParameterPath(name), "there are no sequences of requests");
}

// Parameters that every model has. False: it is none of them.
absl::StatusOr<bool> TakeParameter(absl::string_view name, const InferParameter& parameter,
                                   Source& source, Inference& inference) {
  if (name == "priority") {
    AFT_ASSIGN_OR_RETURN(const uint64_t priority, ReadCount(name, parameter));
    constexpr v1::Priority kPriorities[] = {v1::PRIORITY_UNSPECIFIED, v1::PRIORITY_INTERACTIVE,
                                            v1::PRIORITY_NORMAL, v1::PRIORITY_BATCH};
    source.priority = kPriorities[std::min<uint64_t>(priority, 3)];
  } else if (name == "timeout") {
    AFT_ASSIGN_OR_RETURN(const uint64_t micros, ReadCount(name, parameter));
    constexpr std::chrono::microseconds kMost = std::chrono::hours(24 * 365);
    inference.timeout =
        std::chrono::microseconds(std::min<uint64_t>(micros, static_cast<uint64_t>(kMost.count())));
  } else if (name == "triton_enable_empty_final_response") {
    AFT_ASSIGN_OR_RETURN(inference.empty_final, ReadFlag(name, parameter));
  } else if (name == "binary_data_output") {
    AFT_ASSIGN_OR_RETURN(const bool binary, ReadFlag(name, parameter));
    source.form.typed = !binary;
  } else if (absl::StartsWith(name, "sequence_")) {
    AFT_RETURN_IF_ERROR(CheckNoSequence(name, parameter));
  } else {
    return false;
  }
  return true;
}

Json AsJson(const InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return parameter.bool_param();
    case InferParameter::kInt64Param:
      return parameter.int64_param();
    case InferParameter::kUint64Param:
      return parameter.uint64_param();
    case InferParameter::kDoubleParam:
      return parameter.double_param();
    case InferParameter::kStringParam:
      return parameter.string_param();
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

absl::Status SetFromTensor(const InputTensor& tensor, GenerationOptions& options) {
  Json value;
  if (tensor.name == "seed") {
    AFT_ASSIGN_OR_RETURN(value, ReadUnsigned(tensor));
  } else if (tensor.name == "ignore_eos") {
    AFT_ASSIGN_OR_RETURN(value, ReadBool(tensor));
  } else if (tensor.name == "temperature" || tensor.name == "top_p") {
    AFT_ASSIGN_OR_RETURN(value, ReadFloat(tensor));
  } else {
    AFT_ASSIGN_OR_RETURN(value, ReadInteger(tensor));
  }
  return options.Set("", tensor.name, value);
}

absl::StatusOr<GenerationOptions> ReadOptions(const Source& source,
                                              const std::vector<std::string>& parameters) {
  GenerationOptions options;
  if (const InputTensor* const json = source.Find(kSamplingParameters); json != nullptr) {
    AFT_ASSIGN_OR_RETURN(const absl::string_view text, ReadString(*json));
    AFT_RETURN_IF_ERROR(options.SetAll(kSamplingParameters, text));
  }
  for (const std::string& name : parameters) {
    AFT_RETURN_IF_ERROR(options.Set(kParameters, name, AsJson(source.parameters.at(name))));
  }
  for (const char* const name :
       {"max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos"}) {
    const InputTensor* const tensor = source.Find(name);
    if (tensor != nullptr) AFT_RETURN_IF_ERROR(SetFromTensor(*tensor, options));
  }
  AFT_RETURN_IF_ERROR(options.Close());
  return options;
}

// The text of a request with one; exactly one of text_input and input_ids is there.
absl::StatusOr<const InputTensor*> FindText(const Source& source) {
  const InputTensor* const text = source.Find("text_input");
  const InputTensor* const ids = source.Find("input_ids");
  if ((text == nullptr) == (ids == nullptr)) {
    return BadField("text_input", "exactly one of text_input and input_ids must be given");
  }
  return text != nullptr ? text : ids;
}

absl::Status AddIds(absl::Span<const int64_t> ids, absl::string_view path, int64_t vocab_size,
                    v1::TokenIds& tokens) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return BadField(
          absl::StrCat(path, "[", i, "]"),
          absl::StrCat("must be in [0, ", vocab_size, "), the vocabulary, got ", ids[i]));
    }
    tokens.add_ids(static_cast<uint32_t>(ids[i]));
  }
  return absl::OkStatus();
}

// Fills the text of a request for one.
template <typename Message>
absl::Status SetText(const Source& source, Message& message) {
  AFT_ASSIGN_OR_RETURN(const InputTensor* const tensor, FindText(source));
  if (tensor->name == "text_input") {
    AFT_ASSIGN_OR_RETURN(const absl::string_view text, ReadString(*tensor));
    message.mutable_raw()->assign(text.data(), text.size());
    return absl::OkStatus();
  }
  const auto& shape = tensor->shape;
  if (shape.size() != 1 && !(shape.size() == 2 && shape[0] == 1)) {
    return BadField(tensor->name,
                    absl::StrCat("must be of shape [T] or [1, T], got ", ShowShape(shape)));
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ReadIntegers(*tensor));
  return AddIds(ids, tensor->name, source.model.info.vocab_size, *message.mutable_tokens());
}

// An error of a codec, in terms of the tensor that its text came in. `text`, `ids`: how they are
// called.
absl::Status RenameText(const absl::Status& error, absl::string_view text, absl::string_view ids) {
  absl::string_view rest = error.message();
  if (absl::ConsumePrefix(&rest, "raw:")) {
    return absl::Status(error.code(), absl::StrCat(text, ":", rest));
  }
  if (absl::ConsumePrefix(&rest, "tokens.ids")) {
    return absl::Status(error.code(), absl::StrCat(ids, rest));
  }
  return error;
}

absl::Status DecodeGeneration(const Source& source, GenerationOptions& options,
                              Inference& inference) {
  GenerationForm form;
  static_cast<AnswerForm&>(form) = source.form;
  form.ids = source.Find("input_ids") != nullptr;
  v1::GenerateRequest& message = options.message();
  message.set_priority(source.priority);
  AFT_RETURN_IF_ERROR(SetText(source, message));
  AFT_ASSIGN_OR_RETURN(inference.streams, source.Flag("stream", source.call == Call::kStream));
  if (inference.streams && source.call == Call::kUnary) {
    return BadField("stream", "ModelInfer has one response; ModelStreamInfer streams");
  }
  AFT_ASSIGN_OR_RETURN(form.finish_reason, source.Flag("return_finish_reason"));
  AFT_ASSIGN_OR_RETURN(form.cumulative_logprob, source.Flag("return_cumulative_logprob"));
  AFT_ASSIGN_OR_RETURN(form.logprobs, source.Flag("return_logprobs"));
  AFT_ASSIGN_OR_RETURN(form.num_input_tokens, source.Flag("return_num_input_tokens"));
  AFT_ASSIGN_OR_RETURN(form.num_output_tokens, source.Flag("return_num_output_tokens"));
  const bool bare = inference.streams || form.ids;
  AFT_ASSIGN_OR_RETURN(const bool excluded, source.Flag("exclude_input_in_output", bare));
  if (bare && !excluded) {
    return BadField("exclude_input_in_output",
                    "must be true with stream or input_ids: the input is in no response");
  }
  if (!excluded) form.prefix = message.raw();
  if ((form.logprobs || form.cumulative_logprob) && !message.output().has_top_logprobs()) {
    message.mutable_output()->set_top_logprobs(0);
  }
  v1::Started started;
  GenerateCodec codec;
  auto request = codec.Decode(message, source.limits, source.model, started);
  if (!request.ok()) {
    return RenameText(options.Rename(request.status()), "text_input", "input_ids");
  }
  form.prompt_tokens = started.prompt_tokens();
  inference.tokens = request->prompt.size();
  inference.work = *std::move(request);
  inference.answer = std::make_unique<GenerationAnswer>(std::move(form), source.model.tokenizer);
  return absl::OkStatus();
}

absl::Status DecodeScoring(const Source& source, const GenerationOptions& options,
                           Inference& inference) {
  for (const InputTensor& input : source.inputs) {
    if (input.name != "score" && input.name != "text_input" && input.name != "input_ids") {
      return BadField(input.name, "is of generations, and score is true");
    }
  }
  if (!options.empty()) return BadField(kParameters, "options of generations, and score is true");
  v1::ScoreRequest message;
  message.set_priority(source.priority);
  AFT_RETURN_IF_ERROR(SetText(source, message));
  v1::ScoreStarted started;
  ScoreCodec codec;
  auto request = codec.Decode(message, source.limits, source.model, started);
  if (!request.ok()) return RenameText(request.status(), "text_input", "input_ids");
  inference.tokens = request->text.size();
  inference.work = *std::move(request);
  inference.answer = std::make_unique<ScoringAnswer>(source.form);
  return absl::OkStatus();
}

// [B] or [B, 1].
absl::StatusOr<int64_t> TextCount(const InputTensor& tensor) {
  const auto& shape = tensor.shape;
  if (shape.size() == 1 || (shape.size() == 2 && shape[1] == 1)) return shape[0];
  return BadField(tensor.name,
                  absl::StrCat("must be of shape [B] or [B, 1], got ", ShowShape(shape)));
}

absl::Status CheckBatch(const InputTensor& tensor, int64_t texts, const ServedModel& model) {
  const int64_t most = model.config.max_batch_rows;
  if (texts >= 1 && texts <= most) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have 1 to ", most, " texts (max_batch_size), got ", texts));
}

// How many tokens of each row count: a mask is ones, then zeros.
absl::StatusOr<std::vector<int64_t>> ReadLengths(const Source& source, int64_t rows,
                                                 int64_t columns,
                                                 const std::vector<int64_t>& ids_shape) {
  const InputTensor* const mask = source.Find("attention_mask");
  if (mask == nullptr) return std::vector<int64_t>(static_cast<size_t>(rows), columns);
  if (mask->shape != ids_shape) {
    return BadField(mask->name,
                    absl::StrCat("must have the shape of input_ids, ", ShowShape(ids_shape),
                                 ", got ", ShowShape(mask->shape)));
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> values, ReadMask(*mask));
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = values.begin() + row * columns;
    const auto end = begin + columns;
    const auto zero = std::find_if(begin, end, [](int64_t value) { return value != 1; });
    if (zero == begin || std::any_of(zero, end, [](int64_t value) { return value != 0; })) {
      return BadField(absl::StrCat(mask->name, "[", row, "]"),
                      "must be one or more ones, then zeros");
    }
    lengths.push_back(zero - begin);
  }
  return lengths;
}

// The texts, as messages of Encode, and the second dimension of their vectors; 0: of the longest.
absl::StatusOr<std::vector<v1::EncodeRequest>> ReadTexts(const Source& source, EncodingForm& form) {
  AFT_ASSIGN_OR_RETURN(const InputTensor* const tensor, FindText(source));
  std::vector<v1::EncodeRequest> messages;
  if (tensor->name == "text_input") {
    if (source.Find("attention_mask") != nullptr) {
      return BadField("attention_mask", "is of input_ids");
    }
    AFT_ASSIGN_OR_RETURN(const int64_t texts, TextCount(*tensor));
    AFT_RETURN_IF_ERROR(CheckBatch(*tensor, texts, source.model));
    AFT_ASSIGN_OR_RETURN(const auto strings, ReadStrings(*tensor));
    for (const absl::string_view text : strings) {
      messages.emplace_back().mutable_raw()->assign(text.data(), text.size());
    }
    return messages;
  }
  const auto& shape = tensor->shape;
  if (shape.empty() || shape.size() > 2) {
    return BadField(tensor->name,
                    absl::StrCat("must be of shape [B, T] or [T], got ", ShowShape(shape)));
  }
  form.batch = shape.size() == 2;
  const int64_t rows = form.batch ? shape[0] : 1;
  form.padded = shape.back();
  AFT_RETURN_IF_ERROR(CheckBatch(*tensor, rows, source.model));
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ReadIntegers(*tensor));
  AFT_ASSIGN_OR_RETURN(const auto lengths, ReadLengths(source, rows, form.padded, shape));
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = static_cast<size_t>(row * form.padded);
    const auto length = static_cast<size_t>(lengths[static_cast<size_t>(row)]);
    AFT_RETURN_IF_ERROR(AddIds(
        absl::MakeConstSpan(ids).subspan(first, length), absl::StrCat(tensor->name, "[", row, "]"),
        source.model.info.vocab_size, *messages.emplace_back().mutable_tokens()));
  }
  return messages;
}

absl::Status ReadPooling(const Source& source, const std::vector<std::string>& parameters,
                         EncodingForm& form) {
  for (const std::string& name : parameters) {
    const InferParameter& parameter = source.parameters.at(name);
    if (name == "normalize") {
      AFT_ASSIGN_OR_RETURN(form.normalize, ReadFlag(name, parameter));
    } else if (name == "pooling") {
      const std::string& pooling = parameter.string_param();
      AFT_RETURN_IF_ERROR(CheckOneOf(ParameterPath(name), pooling.substr(0, kMaxParameterNameBytes),
                                     {"mean", "first", "last"}));
      form.pooling = pooling == "mean"    ? Pooling::kMean
                     : pooling == "first" ? Pooling::kFirst
                                          : Pooling::kLast;
    } else {
      return BadField(ParameterPath(name), "there is no such parameter");
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeEncoding(const Source& source, const std::vector<std::string>& parameters,
                            Inference& inference) {
  EncodingForm form;
  static_cast<AnswerForm&>(form) = source.form;
  form.hidden = form.Wants("last_hidden_state");
  form.embedding = form.Wants("embedding");
  form.width = source.model.vector_width;
  AFT_RETURN_IF_ERROR(ReadPooling(source, parameters, form));
  AFT_ASSIGN_OR_RETURN(const auto messages, ReadTexts(source, form));
  std::vector<EncodingRequest> requests;
  int64_t longest = 0;
  for (size_t row = 0; row < messages.size(); ++row) {
    v1::EncodeStarted started;
    auto request = EncodeCodec().Decode(messages[row], source.limits, source.model, started);
    if (!request.ok()) {
      return RenameText(request.status(), absl::StrCat("text_input[", row, "]"),
                        absl::StrCat("input_ids[", row, "]"));
    }
    AFT_ASSIGN_OR_RETURN(request->service_class,
                         DecodePriority(source.priority, ServiceClass::kNormal));
    if (!form.hidden) {  // the engine pools
      request->pooling = form.pooling;
      request->normalize = form.normalize;
    }
    const auto length = static_cast<int64_t>(request->text.size());
    form.lengths.push_back(length);
    longest = std::max(longest, length);
    inference.tokens += request->text.size();
    requests.push_back(*std::move(request));
  }
  if (form.padded == 0) form.padded = longest;
  const int64_t most = source.model.config.max_batch_tokens;
  int64_t padded = 0;
  if (__builtin_mul_overflow(form.padded, static_cast<int64_t>(requests.size()), &padded) ||
      padded > most) {
    return BadField(source.Find("input_ids") != nullptr ? "input_ids" : "text_input",
                    absl::StrCat("must have at most ", most,
                                 " tokens (the model's batch.max_tokens) with padding, got ",
                                 requests.size(), " times ", form.padded));
  }
  inference.work = std::move(requests);
  inference.answer = std::make_unique<EncodingAnswer>(std::move(form));
  return absl::OkStatus();
}

absl::Status CheckNames(const ModelInferRequest& message, const Source& source) {
  const ModelTensors tensors = TensorsOf(source.model);
  const std::string whose = absl::StrCat("of model \"", source.model.config.name, "\"");
  for (const InputTensor& input : source.inputs) {
    if (!tensors.HasInput(input.name)) {
      return BadField(input.name, absl::StrCat("is no input ", whose));
    }
  }
  for (int i = 0; i < message.outputs_size(); ++i) {
    const auto& output = message.outputs(i);
    AFT_RETURN_IF_ERROR(CheckLength(absl::StrCat("outputs[", i, "].name"), output.name().size(),
                                    kMaxParameterNameBytes));
    if (!tensors.HasOutput(output.name())) {
      return BadField(output.name(), absl::StrCat("is no output ", whose));
    }
    for (const char* const key : {"classification", "shared_memory_region"}) {
      if (output.parameters().contains(key)) {
        return BadField(output.name(), absl::StrCat(key, ": there is no such thing here"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Inference> Decode(const ModelInferRequest& message, const LimitsConfig& limits,
                                 const ServedModel& model, Call call) {
  AFT_ASSIGN_OR_RETURN(std::vector<InputTensor> inputs, ReadInputs(message));
  Source source = {.limits = limits,
                   .model = model,
                   .call = call,
                   .inputs = std::move(inputs),
                   .parameters = message.parameters()};
  AFT_RETURN_IF_ERROR(CheckNames(message, source));
  for (const auto& output : message.outputs()) source.form.named.insert(output.name());
  Inference inference;
  std::vector<std::string> own;  // names of parameters of this kind of model
  for (const auto& [name, parameter] : message.parameters()) {
    AFT_RETURN_IF_ERROR(CheckLength("parameters: a name", name.size(), kMaxParameterNameBytes));
    AFT_ASSIGN_OR_RETURN(const bool taken, TakeParameter(name, parameter, source, inference));
    if (!taken) own.push_back(name);
  }
  std::sort(own.begin(), own.end());  // so that the same request has the same error
  if (model.encode != nullptr) {
    AFT_RETURN_IF_ERROR(DecodeEncoding(source, own, inference));
    return inference;
  }
  AFT_ASSIGN_OR_RETURN(GenerationOptions options, ReadOptions(source, own));
  AFT_ASSIGN_OR_RETURN(const bool scores, source.Flag("score"));
  AFT_RETURN_IF_ERROR(scores ? DecodeScoring(source, options, inference)
                             : DecodeGeneration(source, options, inference));
  return inference;
}

// Errors quote what the client wrote.
absl::Status Printable(const absl::Status& error) {
  std::string message(error.message());
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, '?');
  return absl::Status(error.code(), message);
}

}  // namespace

absl::StatusOr<Inference> DecodeInference(const ModelInferRequest& message,
                                          const LimitsConfig& limits, const ServedModel& model,
                                          Call call) {
  auto inference = Decode(message, limits, model, call);
  if (!inference.ok()) return Printable(inference.status());
  return inference;
}

}  // namespace aft::server::kserve
