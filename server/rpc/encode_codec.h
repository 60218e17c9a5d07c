#ifndef AFT_SERVER_RPC_ENCODE_CODEC_H_
#define AFT_SERVER_RPC_ENCODE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/scheduling/request.h"

// aft.v1 messages of Encode <-> the engine's plain values. Pure functions.
namespace aft::server {

// As DecodeGenerateRequest. The text must fit one batch, and the model's max_seq_len.
absl::StatusOr<EncodingRequest> DecodeEncodeRequest(const v1::EncodeRequest& message,
                                                    const LimitsConfig& limits,
                                                    const Tokenizer& tokenizer,
                                                    const ModelInfo& model,
                                                    int64_t max_batch_tokens);

// The vectors from `first` on that go into one message: as many whole ones as fit 32 KiB, at least
// one. Returns how many. REQUIRES: there is a vector of that number.
size_t FillVectors(const std::vector<float>& values, int64_t width, size_t first,
                   v1::Vectors& message);

// REQUIRES: outcome.status is OK.
v1::EncodeFinished EncodeEncodeFinished(const Outcome& outcome);

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_ENCODE_CODEC_H_
