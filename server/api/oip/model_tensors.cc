#include "server/api/oip/model_tensors.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace aft::server::oip {
namespace {

constexpr char kPlatform[] = "aft-serve";

bool Has(const std::vector<TensorSpec>& specs, absl::string_view name) {
  return std::any_of(specs.begin(), specs.end(),
                     [name](const TensorSpec& spec) { return spec.name == name; });
}

TensorSpec Bytes(const char* name, int64_t size = 1) {
  return {name, "BYTES", inference::TYPE_STRING, {size}};
}
TensorSpec Bool(const char* name) { return {name, "BOOL", inference::TYPE_BOOL, {1}}; }
TensorSpec Int32(const char* name) { return {name, "INT32", inference::TYPE_INT32, {1}}; }
TensorSpec Int64(const char* name, std::vector<int64_t> dims = {-1}) {
  return {name, "INT64", inference::TYPE_INT64, std::move(dims)};
}
TensorSpec Uint32(const char* name) { return {name, "UINT32", inference::TYPE_UINT32, {1}}; }
TensorSpec Fp32(const char* name, std::vector<int64_t> dims) {
  return {name, "FP32", inference::TYPE_FP32, std::move(dims)};
}

const ModelTensors& Generation() {
  static const auto& tensors = *new ModelTensors{
      .inputs = {Bytes("text_input"),
                 Int64("input_ids"),
                 Bool("stream"),
                 Bytes("sampling_parameters"),
                 Bool("exclude_input_in_output"),
                 Bool("return_finish_reason"),
                 Bool("return_cumulative_logprob"),
                 Bool("return_logprobs"),
                 Bool("return_num_input_tokens"),
                 Bool("return_num_output_tokens"),
                 Int32("max_tokens"),
                 Fp32("temperature", {1}),
                 Int32("top_k"),
                 Fp32("top_p", {1}),
                 {"seed", "UINT64", inference::TYPE_UINT64, {1}},
                 Bool("ignore_eos"),
                 Bool("score")},
      .outputs = {Bytes("text_output"), Int64("output_ids"), Bytes("finish_reason"),
                  Fp32("cumulative_logprob", {1}), Bytes("logprobs"), Uint32("num_input_tokens"),
                  Uint32("num_output_tokens"), Int64("token_ids"), Fp32("token_logprobs", {-1})}};
  return tensors;
}

ModelTensors Encoding(const ServedModel& model) {
  const bool images = model.info.max_image_width > 0;
  const std::vector<int64_t> tokens(images ? 2 : 1, -1);  // [T] or [H, W]
  const auto vectors = [&](int64_t width) {
    std::vector<int64_t> dims = tokens;
    dims.push_back(width);
    return dims;
  };
  ModelTensors tensors;
  tensors.max_batch_size = static_cast<int32_t>(model.config.max_batch_rows);
  std::vector<TensorSpec>& inputs = tensors.inputs;
  if (model.tokenizer != nullptr) inputs.push_back(Bytes("text_input"));
  if (!IsBareMixer(model)) inputs.push_back(Int64("input_ids", tokens));
  inputs.push_back(Fp32("inputs_embeds", vectors(model.input_width)));
  if (model.info.forms.sources) {
    for (const char* const name : {"query", "key", "value"}) {
      if (model.info.forms.keyless && name == absl::string_view("key")) continue;
      inputs.push_back(Fp32(name, vectors(model.input_width)));
    }
  }
  if (IsBareMixer(model)) {
    inputs.push_back({"attention_mask", "BOOL", inference::TYPE_BOOL, tokens});
  } else if (!images) {
    inputs.push_back(Int64("attention_mask", tokens));
  }
  if (IsClassifier(model)) {
    tensors.outputs = {Fp32("logits", {model.vector_width})};
    return tensors;
  }
  tensors.outputs = {Fp32("last_hidden_state", vectors(model.vector_width))};
  if (!IsBareMixer(model)) tensors.outputs.push_back(Fp32("embedding", {model.vector_width}));
  return tensors;
}

}  // namespace

bool ModelTensors::HasInput(absl::string_view name) const { return Has(inputs, name); }
bool ModelTensors::HasOutput(absl::string_view name) const { return Has(outputs, name); }

ModelTensors TensorsOf(const ServedModel& model) {
  return model.encode != nullptr ? Encoding(model) : Generation();
}

inference::ModelMetadataResponse DescribeModel(const ServedModel& model) {
  inference::ModelMetadataResponse response;
  response.set_name(model.config.name);
  response.add_versions(model.config.version);
  response.set_platform(kPlatform);
  const ModelTensors tensors = TensorsOf(model);
  const auto describe = [&](const TensorSpec& spec,
                            inference::ModelMetadataResponse::TensorMetadata& tensor) {
    tensor.set_name(spec.name);
    tensor.set_datatype(spec.datatype);
    if (tensors.max_batch_size > 0) tensor.add_shape(-1);
    tensor.mutable_shape()->Add(spec.dims.begin(), spec.dims.end());
  };
  for (const TensorSpec& spec : tensors.inputs) describe(spec, *response.add_inputs());
  for (const TensorSpec& spec : tensors.outputs) describe(spec, *response.add_outputs());
  return response;
}

inference::ModelConfig ConfigOf(const ServedModel& model) {
  inference::ModelConfig config;
  config.set_name(model.config.name);
  config.set_platform(kPlatform);
  config.set_backend(kPlatform);
  const ModelTensors tensors = TensorsOf(model);
  config.set_max_batch_size(tensors.max_batch_size);
  for (const TensorSpec& spec : tensors.inputs) {
    inference::ModelInput& input = *config.add_input();
    input.set_name(spec.name);
    input.set_data_type(spec.data_type);
    input.mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
    // A bare mixer with a single input needs it. In all other cases, one of several inputs must be
    // given, so each is optional.
    const bool needed = IsBareMixer(model) && !model.info.forms.sources;
    input.set_optional(!needed || spec.name != absl::string_view("inputs_embeds"));
    input.set_allow_ragged_batch(tensors.max_batch_size > 0);
  }
  for (const TensorSpec& spec : tensors.outputs) {
    inference::ModelOutput& output = *config.add_output();
    output.set_name(spec.name);
    output.set_data_type(spec.data_type);
    output.mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
  }
  if (model.encode != nullptr) {
    const std::chrono::microseconds delay = model.config.max_batch_delay;
    config.mutable_dynamic_batching()->set_max_queue_delay_microseconds(
        static_cast<uint64_t>(delay.count()));
  }
  if (IsClassifier(model)) {
    (*config.mutable_parameters())["labels"].set_string_value(
        DumpJson(nlohmann::json(model.info.labels)));
  }
  config.mutable_model_transaction_policy()->set_decoupled(IsDecoupled(model));
  return config;
}

}  // namespace aft::server::oip
