#include "server/api/oip/encoder_request.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/oip/key_mask.h"
#include "server/api/oip/model_tensors.h"
#include "server/api/oip/tensors.h"
#include "server/config/checks.h"

namespace aft::server::kserve {
namespace {

using inference::InferParameter;

// [B] or [B, 1].
absl::StatusOr<int64_t> TextCount(const InputTensor& tensor) {
  const auto& shape = tensor.shape;
  if (shape.size() == 1 || (shape.size() == 2 && shape[1] == 1)) return shape[0];
  return BadField(tensor.name,
                  absl::StrCat("must be of shape [B] or [B, 1], got ", ShowShape(shape)));
}

absl::Status CheckBatch(const InputTensor& tensor, int64_t rows, const ServedModel& model) {
  const int64_t most = model.config.max_batch_rows;
  if (rows >= 1 && rows <= most) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have 1 to ", most, " rows (max_batch_size), got ", rows));
}

// A row must fit a step; the rows of a request run in as many steps as they need.
absl::Status CheckStep(const InputTensor& tensor, int64_t tokens, const ServedModel& model) {
  const int64_t most = model.config.max_batch_tokens;
  if (tokens <= most) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have at most ", most,
                               " tokens a row (the model's batch.max_tokens), got ", tokens));
}

// How many tokens of each row count: a mask is ones, then zeros.
absl::StatusOr<std::vector<int64_t>> ReadLengths(const Source& source, int64_t rows,
                                                 int64_t columns, absl::Span<const int64_t> shape) {
  const InputTensor* const mask = source.Find("attention_mask");
  if (mask == nullptr) return std::vector<int64_t>(static_cast<size_t>(rows), columns);
  if (absl::MakeConstSpan(mask->shape) != shape) {
    return BadField(mask->name, absl::StrCat("must have a number for each token, ",
                                             ShowShape(shape), ", got ", ShowShape(mask->shape)));
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

// Texts as messages of Encode, and the second dimension of their vectors; 0: of the longest.
absl::StatusOr<std::vector<v1::EncodeRequest>> ReadMessages(const Source& source,
                                                            const InputTensor& tensor,
                                                            EncodingForm& form) {
  std::vector<v1::EncodeRequest> messages;
  if (tensor.name == "text_input") {
    if (source.Find("attention_mask") != nullptr) {
      return BadField("attention_mask", "is of input_ids and inputs_embeds");
    }
    AFT_ASSIGN_OR_RETURN(const int64_t texts, TextCount(tensor));
    AFT_RETURN_IF_ERROR(CheckBatch(tensor, texts, source.model));
    AFT_ASSIGN_OR_RETURN(const auto strings, ReadStrings(tensor));
    for (const absl::string_view text : strings) {
      messages.emplace_back().mutable_raw()->assign(text.data(), text.size());
    }
    return messages;
  }
  const auto& shape = tensor.shape;
  if (shape.empty() || shape.size() > 2) {
    return BadField(tensor.name,
                    absl::StrCat("must be of shape [B, T] or [T], got ", ShowShape(shape)));
  }
  form.batch = shape.size() == 2;
  const int64_t rows = form.batch ? shape[0] : 1;
  form.padded = shape.back();
  AFT_RETURN_IF_ERROR(CheckBatch(tensor, rows, source.model));
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ReadIntegers(tensor));
  AFT_ASSIGN_OR_RETURN(const auto lengths, ReadLengths(source, rows, form.padded, shape));
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = static_cast<size_t>(row * form.padded);
    const auto length = static_cast<size_t>(lengths[static_cast<size_t>(row)]);
    AFT_RETURN_IF_ERROR(AddIds(
        absl::MakeConstSpan(ids).subspan(first, length), absl::StrCat(tensor.name, "[", row, "]"),
        source.model.info.vocab_size, *messages.emplace_back().mutable_tokens()));
  }
  return messages;
}

absl::StatusOr<std::vector<EncodingRequest>> ReadTexts(const Source& source,
                                                       const InputTensor& tensor,
                                                       EncodingForm& form) {
  AFT_ASSIGN_OR_RETURN(const auto messages, ReadMessages(source, tensor, form));
  std::vector<EncodingRequest> requests;
  for (size_t row = 0; row < messages.size(); ++row) {
    v1::EncodeStarted started;
    EncodeCodec codec;
    auto request = codec.Decode(messages[row], source.limits, source.model, started);
    if (!request.ok()) {
      return RenameText(request.status(), absl::StrCat("text_input[", row, "]"),
                        absl::StrCat("input_ids[", row, "]"));
    }
    requests.push_back(std::move(codec.Split(*std::move(request)).front()));
  }
  return requests;
}

// Of [B, T], or [B, H, W] where rows are images, then what a token is: a number where `width` is 0,
// else so many. T = H W.
absl::Status CheckRows(const InputTensor& tensor, int64_t width, const ServedModel& model,
                       EncodingForm& form) {
  const ModelInfo& info = model.info;
  const bool images = info.max_image_width > 0;
  const auto& shape = tensor.shape;
  const size_t dimensions = (images ? 3 : 2) + (width > 0 ? 1 : 0);
  if (shape.size() != dimensions || (width > 0 && shape.back() != width)) {
    return BadField(tensor.name, absl::StrCat("must be of shape ", images ? "[B, H, W" : "[B, T",
                                              width > 0 ? absl::StrCat(", ", width) : "", "], got ",
                                              ShowShape(shape)));
  }
  AFT_RETURN_IF_ERROR(CheckBatch(tensor, shape[0], model));
  if (images) {
    form.image = {shape[1], shape[2]};
    if (shape[2] > info.max_image_width) {
      return BadField(tensor.name, absl::StrCat("must have at most ", info.max_image_width,
                                                " columns (W), got ", shape[2]));
    }
  }
  form.padded = tensor.elements / shape[0] / std::max<int64_t>(width, 1);
  if (form.padded == 0) return BadField(tensor.name, "must not be empty");
  if (info.max_seq_len == 0 || form.padded <= info.max_seq_len) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have at most ", info.max_seq_len,
                               " tokens (the model's max_seq_len), got ", form.padded));
}

// An encoder leaves the padding out; a bare mixer gives every token its vector, and hides keys.
absl::StatusOr<std::vector<EncodingRequest>> ReadVectors(const Source& source,
                                                         const InputTensor& tensor,
                                                         EncodingForm& form) {
  const int64_t width = source.model.input_width;
  AFT_RETURN_IF_ERROR(CheckRows(tensor, width, source.model, form));
  AFT_RETURN_IF_ERROR(CheckStep(tensor, form.padded, source.model));
  const int64_t rows = tensor.shape[0];
  const absl::Span<const int64_t> shape =
      absl::MakeConstSpan(tensor.shape).first(tensor.shape.size() - 1);
  std::vector<int64_t> lengths(static_cast<size_t>(rows), form.padded);
  std::vector<float> keys;
  if (!IsBareMixer(source.model)) {
    AFT_ASSIGN_OR_RETURN(lengths, ReadLengths(source, rows, form.padded, shape));
  } else if (const InputTensor* const mask = source.Find("attention_mask"); mask != nullptr) {
    AFT_ASSIGN_OR_RETURN(keys, ReadKeyMask(*mask, shape, source.model.info.causal));
  }
  std::vector<EncodingRequest> requests(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    EncodingRequest& request = requests[static_cast<size_t>(row)];
    const int64_t first = row * form.padded;
    AFT_ASSIGN_OR_RETURN(request.vectors, ReadFloats(tensor, first * width,
                                                     lengths[static_cast<size_t>(row)] * width));
    if (!keys.empty()) {
      request.mask.assign(keys.begin() + first, keys.begin() + first + form.padded);
    }
    if (!form.image.empty()) request.image_width = form.image[1];
  }
  return requests;
}

// Pixels as ids.
absl::StatusOr<std::vector<EncodingRequest>> ReadImages(const Source& source,
                                                        const InputTensor& tensor,
                                                        EncodingForm& form) {
  AFT_RETURN_IF_ERROR(CheckRows(tensor, /*width=*/0, source.model, form));
  AFT_RETURN_IF_ERROR(CheckStep(tensor, form.padded, source.model));
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ReadIntegers(tensor));
  std::vector<EncodingRequest> requests(static_cast<size_t>(tensor.shape[0]));
  for (size_t row = 0; row < requests.size(); ++row) {
    const auto pixels = static_cast<size_t>(form.padded);
    v1::TokenIds image;
    AFT_RETURN_IF_ERROR(AddIds(absl::MakeConstSpan(ids).subspan(row * pixels, pixels),
                               absl::StrCat(tensor.name, "[", row, "]"),
                               source.model.info.vocab_size, image));
    requests[row].text.assign(image.ids().begin(), image.ids().end());
    requests[row].image_width = form.image[1];
  }
  return requests;
}

absl::Status ReadPooling(const Source& source, const std::vector<std::string>& parameters,
                         EncodingForm& form) {
  for (const std::string& name : parameters) {
    const InferParameter& parameter = source.parameters.at(name);
    if (IsBareMixer(source.model) || IsClassifier(source.model)) {
      return BadField(ParameterPath(name), "there is no such parameter");
    }
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

}  // namespace

absl::Status DecodeEncoding(const Source& source, const std::vector<std::string>& parameters,
                            Inference& inference) {
  const ServedModel& model = source.model;
  EncodingForm form;
  static_cast<AnswerForm&>(form) = source.form;
  if (IsClassifier(model)) form.pooled_name = "logits";
  if (form.top_classes > 0) form.labels = model.info.labels;
  form.hidden = !IsClassifier(model) && form.Wants("last_hidden_state");
  form.pooled = !IsBareMixer(model) && form.Wants(form.pooled_name);
  form.width = model.vector_width;
  AFT_RETURN_IF_ERROR(ReadPooling(source, parameters, form));
  const bool images = model.info.max_image_width > 0;
  static constexpr const char* kNames[] = {"text_input", "input_ids", "inputs_embeds"};
  AFT_ASSIGN_OR_RETURN(const InputTensor* const tensor,
                       source.FindOneOf(absl::MakeConstSpan(kNames).subspan(IsBareMixer(model) ? 2
                                                                            : images           ? 1
                                                                                     : 0)));
  AFT_ASSIGN_OR_RETURN(std::vector<EncodingRequest> requests,
                       tensor->name == "inputs_embeds" ? ReadVectors(source, *tensor, form)
                       : images                        ? ReadImages(source, *tensor, form)
                                                       : ReadTexts(source, *tensor, form));
  int64_t longest = 0;
  for (EncodingRequest& request : requests) {
    AFT_ASSIGN_OR_RETURN(request.service_class,
                         DecodePriority(source.priority, ServiceClass::kNormal));
    if (!form.hidden) {  // the engine pools
      request.pooling = form.pooling;
      request.normalize = form.normalize;
    }
    form.lengths.push_back(request.tokens(model.input_width));
    longest = std::max(longest, form.lengths.back());
    inference.tokens += request.text.size();
    inference.tensor_bytes += (request.vectors.size() + request.mask.size()) * sizeof(float);
  }
  if (form.padded == 0) form.padded = longest;
  inference.work = std::move(requests);
  inference.answer = std::make_unique<EncodingAnswer>(std::move(form));
  return absl::OkStatus();
}

}  // namespace aft::server::kserve
