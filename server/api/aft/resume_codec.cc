#include "server/api/aft/resume_codec.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "server/api/aft/text_codec.h"
#include "server/config/checks.h"
#include "server/states/state_store.h"

namespace aft::server {
namespace {

constexpr size_t kMaxNumericsBytes = 128;

// Serves both kinds of `resume`.
template <typename Resume>
absl::Status CheckModel(const Resume& resume, const ServedModel& model) {
  AFT_RETURN_IF_ERROR(CheckLength("resume.numerics", resume.numerics().size(), kMaxNumericsBytes));
  if (resume.fingerprint() == model.info.fingerprint) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "resume.fingerprint: the stream is of another model, or of other weights, config or number "
      "format: %016x, that of \"%s\" is %016x",
      resume.fingerprint(), model.config.name, model.info.fingerprint));
}

bool ComputesAlike(absl::string_view theirs, absl::string_view ours) {
  return !ours.empty() && theirs == ours;
}

}  // namespace

absl::Status DecodeResume(const v1::GenerateRequest& message, const ServedModel& model,
                          GenerationRequest& request) {
  const v1::Resume& resume = message.resume();
  AFT_RETURN_IF_ERROR(
      CheckLength("resume.resume_id", resume.resume_id().size(), StateStore::kIdBytes));
  if (message.n() > 1) {
    return BadField("resume",
                    "needs n=1: resume each sequence of a request with n > 1 by itself, with "
                    "the seed of Started plus the sequence's index");
  }
  if (!message.sampling().has_seed()) {
    return BadField("sampling.seed", "must be set with resume, to the seed in Started");
  }
  AFT_RETURN_IF_ERROR(CheckModel(resume, model));
  AFT_RETURN_IF_ERROR(
      DecodeTokens("resume.token_ids", resume.token_ids(), model.info.vocab_size, request.prompt));
  request.resumed = static_cast<size_t>(resume.token_ids_size());
  return absl::OkStatus();
}

absl::Status DecodeResume(const v1::ScoreRequest& message, const ServedModel& model,
                          ScoringRequest& request) {
  const v1::ScoreResume& resume = message.resume();
  if (!std::isfinite(resume.logprob()) || (resume.scores() == 0 && resume.logprob() != 0)) {
    return BadField("resume.logprob",
                    absl::StrCat("must be finite, and 0 for no scores, got ", resume.logprob()));
  }
  AFT_RETURN_IF_ERROR(CheckModel(resume, model));
  request.scored = resume.scores();
  request.logprob = resume.logprob();
  return absl::OkStatus();
}

std::string NumericsOf(const ModelInfo& info, const TurnRequest& request) {
  if (info.numerics.empty() || request.previous == nullptr) return info.numerics;
  return absl::StrFormat("%s, %016x", info.numerics, request.previous->history);
}

bool IsExact(const v1::ScoreResume& resume, absl::string_view numerics) {
  return resume.scores() == 0 || ComputesAlike(resume.numerics(), numerics);
}

bool IsExact(const v1::Resume& resume, absl::string_view numerics, const ModelInfo& info,
             const GenerationRequest& request) {
  if (request.resumed == 0) return true;  // no token was computed elsewhere
  if (!ComputesAlike(resume.numerics(), numerics)) return false;
  // The output is read after the prompt in one go, so both are computed as a prompt. It is still
  // exact if the stream continues from a state that already contains output.
  const SequenceState* const from =
      request.start != nullptr ? request.start.get() : request.previous.get();
  return !info.generated_differ || (from != nullptr && from->outputs > 0);
}

}  // namespace aft::server
