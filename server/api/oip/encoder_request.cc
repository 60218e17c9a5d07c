#include "server/api/oip/encoder_request.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/oip/masks.h"
#include "server/api/oip/model_tensors.h"
#include "server/api/oip/tensors.h"
#include "server/config/checks.h"

namespace aft::server::oip {
namespace {

using inference::InferParameter;

// Returns B for a tensor of shape [B] or [B, 1].
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

// Each row must fit a step. The rows of a request run in as many steps as they need.
absl::Status CheckStep(const InputTensor& tensor, int64_t tokens, const ServedModel& model) {
  const int64_t most = model.config.max_batch_tokens;
  if (tokens <= most) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have at most ", most,
                               " tokens a row (the model's batch.max_tokens), got ", tokens));
}

// The attention_mask of an encoder's rows. Hidden tokens have no vector. Hidden tokens at the end
// of a row are padding, and are removed.
struct TokenMasks {
  std::vector<int64_t> lengths{};
  Masks masks{};

  // Sets the masks of a row. `request` already has the tokens of the row without padding.
  void Set(size_t row, int64_t padded, EncodingRequest& request) const {
    if (!masks.pairs.empty()) request.pairs = masks.pairs[row];
    if (masks.keys.empty()) return;
    const auto first = masks.keys.begin() + static_cast<int64_t>(row) * padded;
    const auto end = first + lengths[row];
    if (std::all_of(first, end, [](float key) { return key == 0; })) return;
    request.mask.assign(first, end);
    for (const float key : request.mask) request.kept.push_back(key == 0);
  }
};

absl::StatusOr<TokenMasks> ReadTokenMasks(const Source& source, int64_t rows, int64_t columns,
                                          absl::Span<const int64_t> shape) {
  TokenMasks tokens;
  tokens.lengths.assign(static_cast<size_t>(rows), columns);
  const InputTensor* const mask = source.Find("attention_mask");
  if (mask == nullptr) return tokens;
  AFT_ASSIGN_OR_RETURN(tokens.masks, ReadMasks(*mask, {.shape = {shape.begin(), shape.end()},
                                                       .rows = rows,
                                                       .queries = columns,
                                                       .keys = columns,
                                                       .causal = source.model.info.causal,
                                                       .pairs = source.model.info.forms.pairs}));
  if (tokens.masks.keys.empty()) return tokens;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = tokens.masks.keys.begin() + row * columns;
    int64_t& length = tokens.lengths[static_cast<size_t>(row)];
    while (length > 0 && begin[length - 1] != 0) --length;
    if (length == 0) {
      return BadField(absl::StrCat(mask->name, "[", row, "]"), "must have a visible token");
    }
  }
  return tokens;
}

// Reads texts as messages of Encode. Sets form.padded, the number of tokens in a row of the answer;
// 0 means the length of the longest text.
absl::StatusOr<std::vector<v1::EncodeRequest>> ReadMessages(const Source& source,
                                                            const InputTensor& tensor,
                                                            EncodingForm& form, TokenMasks& masks) {
  std::vector<v1::EncodeRequest> messages;
  if (tensor.name == "text_input") {
    if (source.Find("attention_mask") != nullptr) {
      return BadField("attention_mask", "needs input_ids or inputs_embeds");
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
  AFT_ASSIGN_OR_RETURN(masks, ReadTokenMasks(source, rows, form.padded, shape));
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = static_cast<size_t>(row * form.padded);
    const auto length = static_cast<size_t>(masks.lengths[static_cast<size_t>(row)]);
    AFT_RETURN_IF_ERROR(AddIds(
        absl::MakeConstSpan(ids).subspan(first, length), absl::StrCat(tensor.name, "[", row, "]"),
        source.model.info.vocab_size, *messages.emplace_back().mutable_tokens()));
  }
  return messages;
}

absl::StatusOr<std::vector<EncodingRequest>> ReadTexts(const Source& source,
                                                       const InputTensor& tensor,
                                                       EncodingForm& form) {
  TokenMasks masks;
  AFT_ASSIGN_OR_RETURN(const auto messages, ReadMessages(source, tensor, form, masks));
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
    masks.Set(row, form.padded, requests.back());
  }
  return requests;
}

// Checks the shape: [B, T], or [B, H, W] if rows are images. If `width` is not 0, a token is a
// vector, and the shape has `width` as its last dimension. T = H W.
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

// The keys and values of a bare mixer, if they are not made from the queries.
struct Sources {
  const InputTensor* key = nullptr;
  const InputTensor* value = nullptr;
  int64_t tokens = 0;  // number of keys in a row
};

// Reads the tensors that belong to `tensor`, which has form.padded queries in each row.
absl::StatusOr<Sources> ReadSources(const Source& source, const InputTensor& tensor,
                                    const EncodingForm& form) {
  const ServedModel& model = source.model;
  const EncoderForms& forms = model.info.forms;
  Sources sources = {source.Find("key"), source.Find("value"), form.padded};
  const auto check = [&](const char* name, const InputTensor* given, bool wanted) {
    if (wanted && given == nullptr) return BadField(name, "must be given with query");
    if (wanted || given == nullptr) return absl::OkStatus();
    return BadField(name, "goes with query, which is not given");
  };
  const bool apart = tensor.name == "query";
  AFT_RETURN_IF_ERROR(check("key", sources.key, apart && !forms.keyless));
  AFT_RETURN_IF_ERROR(check("value", sources.value, apart));
  if (sources.value == nullptr) return sources;
  EncodingForm of_keys;
  for (const InputTensor* const given : {sources.key, sources.value}) {
    if (given == nullptr) continue;
    AFT_RETURN_IF_ERROR(CheckRows(*given, model.input_width, model, of_keys));
    if (given->shape == tensor.shape) continue;
    const std::string got = absl::StrCat("got ", ShowShape(given->shape));
    if (!forms.free_lengths) {
      return BadField(given->name,
                      absl::StrCat("must have the shape of query, ", ShowShape(tensor.shape),
                                   model.info.causal ? ", because the mixer is causal, "
                                                     : ", because the mixer depends on positions, ",
                                   got));
    }
    if (given->shape[0] != tensor.shape[0]) {
      return BadField(given->name, absl::StrCat("must have as many rows as query, ", got));
    }
  }
  sources.tokens = of_keys.padded;
  if (sources.key != nullptr && sources.key->shape != sources.value->shape) {
    return BadField("value",
                    absl::StrCat("must have the shape of key, ", ShowShape(sources.key->shape),
                                 ", got ", ShowShape(sources.value->shape)));
  }
  if (sources.tokens == form.padded) return sources;
  AFT_RETURN_IF_ERROR(CheckStep(*sources.value, form.padded + sources.tokens, model));
  if (sources.tokens <= kMaxPairs / form.padded) return sources;
  return BadField("value", absl::StrCat("must have at most ", kMaxPairs, " pairs with query, got ",
                                        form.padded, " times ", sources.tokens));
}

// An encoder skips the padding. A bare mixer returns a vector for every query, and its mask hides
// keys.
absl::StatusOr<std::vector<EncodingRequest>> ReadVectors(const Source& source,
                                                         const InputTensor& tensor,
                                                         EncodingForm& form) {
  const int64_t width = source.model.input_width;
  AFT_RETURN_IF_ERROR(CheckRows(tensor, width, source.model, form));
  AFT_RETURN_IF_ERROR(CheckStep(tensor, form.padded, source.model));
  AFT_ASSIGN_OR_RETURN(const Sources sources, ReadSources(source, tensor, form));
  const int64_t rows = tensor.shape[0];
  const int64_t keys = sources.tokens;
  const absl::Span<const int64_t> shape =
      absl::MakeConstSpan((sources.value != nullptr ? *sources.value : tensor).shape)
          .first(tensor.shape.size() - 1);
  TokenMasks masks;
  if (!IsBareMixer(source.model)) {
    AFT_ASSIGN_OR_RETURN(masks, ReadTokenMasks(source, rows, form.padded, shape));
  } else {
    masks.lengths.assign(static_cast<size_t>(rows), form.padded);
    if (const InputTensor* const mask = source.Find("attention_mask"); mask != nullptr) {
      AFT_ASSIGN_OR_RETURN(masks.masks, ReadMasks(*mask, {.shape = {shape.begin(), shape.end()},
                                                          .rows = rows,
                                                          .queries = form.padded,
                                                          .keys = keys,
                                                          .causal = source.model.info.causal,
                                                          .pairs = source.model.info.forms.pairs,
                                                          .numbers = true}));
    }
  }
  std::vector<EncodingRequest> requests(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    EncodingRequest& request = requests[static_cast<size_t>(row)];
    AFT_ASSIGN_OR_RETURN(request.vectors,
                         ReadFloats(tensor, row * form.padded * width,
                                    masks.lengths[static_cast<size_t>(row)] * width));
    if (sources.key != nullptr) {
      AFT_ASSIGN_OR_RETURN(request.keys,
                           ReadFloats(*sources.key, row * keys * width, keys * width));
    }
    if (sources.value != nullptr) {
      AFT_ASSIGN_OR_RETURN(request.values,
                           ReadFloats(*sources.value, row * keys * width, keys * width));
    }
    if (!IsBareMixer(source.model)) {
      masks.Set(static_cast<size_t>(row), form.padded, request);
    } else if (!masks.masks.keys.empty()) {
      const auto first = masks.masks.keys.begin() + row * keys;
      request.mask.assign(first, first + keys);
    } else if (!masks.masks.pairs.empty()) {
      request.pairs = masks.masks.pairs[static_cast<size_t>(row)];
    }
    if (!form.image.empty()) request.image_width = form.image[1];
  }
  return requests;
}

// Reads pixels as ids.
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

// The number of bytes that the engine has of a row. A mask of pairs is not counted again if it is
// `counted`, the one of the row before.
size_t BytesOf(const EncodingRequest& request, const std::vector<float>* counted) {
  const size_t numbers =
      request.vectors.size() + request.keys.size() + request.values.size() + request.mask.size();
  const bool shared = request.pairs == nullptr || request.pairs.get() == counted;
  return (numbers + (shared ? 0 : request.pairs->size())) * sizeof(float);
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
  form.pooling = model.info.pooling;
  form.normalize = model.info.normalize;
  AFT_RETURN_IF_ERROR(ReadPooling(source, parameters, form));
  const bool images = model.info.max_image_width > 0;
  static constexpr const char* kNames[] = {"text_input", "input_ids", "inputs_embeds", "query"};
  const size_t first = IsBareMixer(model) ? 2 : images ? 1 : 0;
  const size_t end = model.info.forms.sources ? 4 : 3;
  AFT_ASSIGN_OR_RETURN(const InputTensor* const tensor,
                       source.FindOneOf(absl::MakeConstSpan(kNames).subspan(first, end - first)));
  const bool vectors = tensor->name == "inputs_embeds" || tensor->name == "query";
  AFT_ASSIGN_OR_RETURN(std::vector<EncodingRequest> requests,
                       vectors  ? ReadVectors(source, *tensor, form)
                       : images ? ReadImages(source, *tensor, form)
                                : ReadTexts(source, *tensor, form));
  int64_t longest = 0;
  const std::vector<float>* pairs = nullptr;  // of the row before
  for (EncodingRequest& request : requests) {
    AFT_ASSIGN_OR_RETURN(request.service_class,
                         DecodePriority(source.priority, ServiceClass::kNormal));
    if (!form.hidden) {  // then the engine pools
      request.pooling = form.pooling;
      request.normalize = form.normalize;
    }
    form.lengths.push_back(request.tokens(model.input_width));
    form.kept.push_back(request.kept);
    longest = std::max(longest, form.lengths.back());
    inference.tokens += request.text.size();
    inference.tensor_bytes += BytesOf(request, pairs);
    pairs = request.pairs.get();
  }
  if (form.padded == 0) form.padded = longest;
  inference.work = std::move(requests);
  inference.answer = std::make_unique<EncodingAnswer>(std::move(form));
  return absl::OkStatus();
}

}  // namespace aft::server::oip
