#include "server/api/oip/request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/named_options.h"
#include "server/api/aft/score_codec.h"
#include "server/api/oip/encoder_request.h"
#include "server/api/oip/model_tensors.h"
#include "server/api/oip/source.h"
#include "server/api/oip/tensors.h"
#include "server/config/checks.h"

namespace aft::server::oip {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using Json = nlohmann::json;

constexpr char kSamplingParameters[] = "sampling_parameters";

absl::StatusOr<uint64_t> ReadCount(absl::string_view name, const InferParameter& parameter) {
  if (parameter.has_uint64_param()) return parameter.uint64_param();
  if (parameter.has_int64_param() && parameter.int64_param() >= 0) {
    return static_cast<uint64_t>(parameter.int64_param());
  }
  return BadField(ParameterPath(name), "must be an integer of at least 0");
}

// The protocol's sequences, which are requests in an order, are not supported.
absl::Status CheckNoSequence(absl::string_view name, const InferParameter& parameter) {
  const bool none = name == "sequence_id"
                        ? (parameter.has_int64_param() && parameter.int64_param() == 0) ||
                              (parameter.has_uint64_param() && parameter.uint64_param() == 0) ||
                              (parameter.has_string_param() && parameter.string_param().empty())
                        : parameter.has_bool_param() && !parameter.bool_param();
  if (none) return absl::OkStatus();
  return BadField(ParameterPath(name), "sequences of requests are not supported");
}

// Reads parameters that every model has. Returns false for other parameters.
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
  } else if (name == "sequence_id" || name == "sequence_start" || name == "sequence_end") {
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
    const InferParameter& parameter = source.parameters.at(name);
    // Json takes null for an option that is not set. A newer kind of value arrives like this, too.
    if (parameter.parameter_choice_case() == InferParameter::PARAMETER_CHOICE_NOT_SET) {
      return BadField(ParameterPath(name), "must have a value");
    }
    AFT_RETURN_IF_ERROR(options.Set(kParameters, name, AsJson(parameter)));
  }
  for (const char* const name :
       {"max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos"}) {
    const InputTensor* const tensor = source.Find(name);
    if (tensor != nullptr) AFT_RETURN_IF_ERROR(SetFromTensor(*tensor, options));
  }
  return options;
}

// Sets the text of a request for a single text.
template <typename Message>
absl::Status SetText(const Source& source, Message& message) {
  AFT_ASSIGN_OR_RETURN(const InputTensor* const tensor,
                       source.FindOneOf({"text_input", "input_ids"}));
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

absl::Status DecodeGeneration(const Source& source, GenerationOptions& options,
                              Inference& inference) {
  GenerationForm form;
  static_cast<AnswerForm&>(form) = source.form;
  form.ids = source.Find("input_ids") != nullptr;
  v1::GenerateRequest& message = options.message();
  message.set_priority(source.priority);
  AFT_RETURN_IF_ERROR(SetText(source, message));
  AFT_ASSIGN_OR_RETURN(inference.streams, source.Flag("stream", source.reply == Reply::kStream));
  if (inference.streams && source.reply == Reply::kUnary) {
    return BadField("stream", "ModelInfer has one response; ModelStreamInfer streams");
  }
  form.streams = inference.streams;
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
  inference.text = form.ids ? "input_ids" : "text_input";
  inference.tokens = codec.kept_tokens(*request);
  inference.work = *std::move(request);
  message = v1::GenerateRequest();
  inference.options = std::move(options);
  inference.answer = std::make_unique<GenerationAnswer>(std::move(form), source.model.tokenizer);
  return absl::OkStatus();
}

absl::Status DecodeScoring(const Source& source, const GenerationOptions& options,
                           Inference& inference) {
  for (const InputTensor& input : source.inputs) {
    if (input.name != "score" && input.name != "text_input" && input.name != "input_ids") {
      return BadField(input.name, "is only for generations, but score is true");
    }
  }
  if (!options.empty())
    return BadField(kParameters, "options are only for generations, but score is true");
  v1::ScoreRequest message;
  message.set_priority(source.priority);
  AFT_RETURN_IF_ERROR(SetText(source, message));
  v1::ScoreStarted started;
  ScoreCodec codec;
  auto request = codec.Decode(message, source.limits, source.model, started);
  if (!request.ok()) return RenameText(request.status(), "text_input", "input_ids");
  inference.tokens = codec.tokens();
  inference.work = codec.Split(*std::move(request));
  inference.answer = std::make_unique<ScoringAnswer>(source.form);
  return absl::OkStatus();
}

// The number of classes that an output asks for of a classifier's logits; 0 if it does not ask.
absl::StatusOr<int64_t> ReadTopClasses(const ModelInferRequest::InferRequestedOutputTensor& output,
                                       const ServedModel& model) {
  const auto parameter = output.parameters().find("classification");
  if (parameter == output.parameters().end()) return 0;
  if (!IsClassifier(model)) {
    return BadField(output.name(), "classification: the model is not a classifier");
  }
  const int64_t count = parameter->second.int64_param();
  if (count >= 1) return count;
  return BadField(output.name(), "classification: must be an integer of at least 1");
}

absl::Status CheckNames(const ModelInferRequest& message, Source& source) {
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
    if (output.parameters().contains("shared_memory_region")) {
      return BadField(output.name(), "shared_memory_region: there is no shared memory");
    }
    AFT_ASSIGN_OR_RETURN(const int64_t top, ReadTopClasses(output, source.model));
    source.form.top_classes = std::max(source.form.top_classes, top);
    source.form.named.insert(output.name());
  }
  return absl::OkStatus();
}

absl::StatusOr<Inference> Decode(const ModelInferRequest& message, const LimitsConfig& limits,
                                 const ServedModel& model, Reply reply) {
  AFT_ASSIGN_OR_RETURN(std::vector<InputTensor> inputs, ReadInputs(message));
  Source source = {.limits = limits,
                   .model = model,
                   .reply = reply,
                   .inputs = std::move(inputs),
                   .parameters = message.parameters()};
  AFT_RETURN_IF_ERROR(CheckNames(message, source));
  Inference inference;
  std::vector<std::string> own;  // names of parameters of this kind of model
  for (const auto& [name, parameter] : message.parameters()) {
    AFT_RETURN_IF_ERROR(CheckLength("parameters: a name", name.size(), kMaxParameterNameBytes));
    AFT_ASSIGN_OR_RETURN(const bool taken, TakeParameter(name, parameter, source, inference));
    if (!taken) own.push_back(name);
  }
  std::sort(own.begin(), own.end());  // the same request always has the same error
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

// Replaces control characters, because errors quote what the client wrote.
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
                                          Reply reply) {
  auto inference = Decode(message, limits, model, reply);
  if (!inference.ok()) return Printable(inference.status());
  return inference;
}

}  // namespace aft::server::oip
