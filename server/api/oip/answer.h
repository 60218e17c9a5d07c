#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "model/api/sampling_params.h"
#include "model/api/tokenizer.h"
#include "server/engine/request.h"

namespace aft::server::oip {

// Which outputs a response has, and in which form.
struct AnswerForm {
  std::set<std::string> named;  // in the request's `outputs`; empty: all outputs
  bool typed = false;           // in InferTensorContents, not as raw bytes
  int64_t top_classes = 0;      // number of logits as strings; 0: logits are numbers

  bool Wants(const char* output) const { return named.empty() || named.count(output) > 0; }
};

// Turns the results of engines for one request into outputs of responses. One thread at a time may
// call it.
class Answer {
 public:
  virtual ~Answer() = default;

  // The number of bytes that it will keep, as far as known in advance; Prepare allocates that
  // memory.
  virtual size_t most_bytes() const { return 0; }
  virtual void Prepare() {}

  // Keeps a part of an answer that has a single response. Runs on an engine's thread, so it must
  // be fast: other work waits for WriteEnd.
  virtual void Collect(TokenDelta /*delta*/) {}
  virtual void CollectRow(size_t /*row*/, std::vector<float> /*vectors*/) {}
  // The size of what it keeps, about, as WriteEnd will write it.
  virtual size_t held_bytes() const { return 0; }

  // For an answer with a response per token: the size on the wire of the tensors that WriteToken
  // makes of `delta`, about; 0 if `delta` needs no response.
  virtual size_t WireBytes(const TokenDelta& /*delta*/) const { return 0; }
  // Writes the response of one token.
  virtual void WriteToken(const TokenDelta& /*delta*/,
                          inference::ModelInferResponse& /*response*/) {}

  // Writes the last response, with everything that was kept. It may have no outputs.
  virtual void WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) = 0;
};

// The outputs that the request wants of a generation.
struct GenerationForm : AnswerForm {
  bool streams = false;  // there is a response for each token
  bool ids = false;      // output_ids instead of text_output
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  std::string prefix;  // of text_output
  uint32_t prompt_tokens = 0;
};

class GenerationAnswer final : public Answer {
 public:
  GenerationAnswer(GenerationForm form, std::shared_ptr<const Tokenizer> tokenizer)
      : form_(std::move(form)), tokenizer_(std::move(tokenizer)) {}

  size_t most_bytes() const override { return form_.prefix.size(); }
  void Collect(TokenDelta delta) override;
  size_t held_bytes() const override;
  size_t WireBytes(const TokenDelta& delta) const override;
  void WriteToken(const TokenDelta& delta, inference::ModelInferResponse& response) override;
  void WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) override;

 private:
  // The content of one response.
  struct Part {
    std::string text;
    std::vector<int64_t> ids;
    std::string logprobs;  // elements of a JSON list
  };

  void Add(const TokenDelta& delta, Part& part);
  void AddLogprobs(const SampledToken& token, std::string& json) const;
  // The size of the JSON that AddLogprobs makes of all tokens, about.
  size_t LogprobsBytes(const TokenDelta& delta) const;
  void Write(const Part& part, const char* reason, inference::ModelInferResponse& response) const;

  const GenerationForm form_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  Part kept_;                          // of a single response
  std::vector<SampledToken> sampled_;  // the tokens of kept_, if their logprobs are wanted
  size_t logprobs_bytes_ = 0;          // about the size of the JSON that they will become
  double logprob_ = 0;
};

class ScoringAnswer final : public Answer {
 public:
  explicit ScoringAnswer(AnswerForm form) : form_(std::move(form)) {}

  void Collect(TokenDelta delta) override;
  size_t held_bytes() const override { return ids_.size() * 3 * sizeof(int64_t); }
  void WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) override;

 private:
  const AnswerForm form_;
  std::vector<int64_t> ids_;
  std::vector<float> logprobs_;
};

// The outputs that the request wants of an encoder's texts.
struct EncodingForm : AnswerForm {
  std::vector<int64_t> lengths;  // of the texts in tokens
  // EncodingRequest::kept of each text.
  std::vector<std::vector<uint8_t>> kept;
  int64_t padded = 0;          // number of tokens in a row of last_hidden_state
  std::vector<int64_t> image;  // [H, W] if rows are images; their product is `padded`
  int64_t width = 0;
  bool batch = true;  // the first dimension is the number of texts
  bool hidden = true;
  bool pooled = true;
  const char* pooled_name = "embedding";  // or a classifier's "logits"
  Pooling pooling = Pooling::kMean;
  bool normalize = false;
  std::vector<std::string> labels;  // of the logits; only with top_classes
};

class EncodingAnswer final : public Answer {
 public:
  explicit EncodingAnswer(EncodingForm form) : form_(std::move(form)) {}

  size_t most_bytes() const override;
  void Prepare() override;
  // Takes the vectors of a text if last_hidden_state is wanted, else the pooled vector.
  void CollectRow(size_t row, std::vector<float> vectors) override;
  void WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) override;

 private:
  // Numbers of rows, each of which has `width` numbers.
  size_t hidden_rows() const {
    return form_.hidden ? form_.lengths.size() * static_cast<size_t>(form_.padded) : 0;
  }
  size_t pooled_rows() const { return form_.pooled ? form_.lengths.size() : 0; }

  const EncodingForm form_;
  std::vector<float> hidden_;  // [texts, padded, width]; 0 after the end of a text
  std::vector<float> pooled_;
};

}  // namespace aft::server::oip
