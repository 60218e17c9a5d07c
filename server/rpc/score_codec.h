#ifndef AFT_SERVER_RPC_SCORE_CODEC_H_
#define AFT_SERVER_RPC_SCORE_CODEC_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/scheduling/request.h"

// aft.v1 messages of Score <-> the engine's plain values. Pure functions.
namespace aft::server {

// As DecodeGenerateRequest. The text may have as many tokens as the model's max_seq_len.
absl::StatusOr<ScoringRequest> DecodeScoreRequest(const v1::ScoreRequest& message,
                                                  const LimitsConfig& limits,
                                                  const Tokenizer& tokenizer,
                                                  const ModelInfo& model);

// As AppendDelta.
size_t AppendScores(const TokenDelta& delta, v1::ScoreChunk& message);

// REQUIRES: outcome.status is OK.
v1::ScoreFinished EncodeScoreFinished(const Outcome& outcome);

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_SCORE_CODEC_H_
