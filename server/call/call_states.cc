#include "server/call/call_states.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/catching.h"
#include "base/status_macros.h"
#include "model/api/sampling_params.h"
#include "model/api/snapshot_bytes.h"
#include "server/engine/resumption.h"

namespace aft::server {
namespace {

// Returns the text of the stream so far, as a state without a snapshot.
SequenceState TextOf(const GenerationRequest& request, uint64_t model) {
  const auto first = request.prompt.end() - static_cast<std::ptrdiff_t>(request.resumed);
  TurnEnd turn;
  turn.previous = request.previous;
  turn.model = model;
  turn.text.assign(request.prompt.begin(), first);
  turn.outputs.assign(first, request.prompt.end());
  turn.last_is_pending = request.resumed > 0;
  return MakeState(std::move(turn)).value();
}

}  // namespace

void CallStates::FindPrevious(const Client& client, const v1::Previous& previous,
                              StateAccess::Found done) {
  const bool brought = !previous.state().empty();
  states_.Find(client, previous,
               [this, brought, done = std::move(done)](
                   absl::StatusOr<std::shared_ptr<const SequenceState>> found) {
                 if (brought && found.ok())
                   brought_bytes_ += static_cast<size_t>(StateBytes(**found));
                 done(std::move(found));
               });
}

absl::Status CallStates::KeepPlaces(const Client& client, const v1::Store& store,
                                    const ModelInfo& info, const Work& work, uint32_t sequences,
                                    size_t note_bytes) {
  note_bytes_ = note_bytes;
  const auto keep = [&](const TurnRequest& turn, size_t length,
                        int64_t most_outputs) -> absl::Status {
    const int64_t longest = info.max_seq_len;
    const int64_t before = turn.tokens_before();
    int64_t added = static_cast<int64_t>(length) + most_outputs;
    if (longest > 0) added = std::min(added, std::max<int64_t>(longest - before, 0));
    const int64_t bytes =
        MaxStateBytes(info, before + added, added) + static_cast<int64_t>(note_bytes);
    AFT_ASSIGN_OR_RETURN(auto place, states_.Reserve(client, store, bytes));
    places_.push_back(std::move(place));
    return absl::OkStatus();
  };
  if (const auto* const generation = std::get_if<GenerationRequest>(&work)) {
    const size_t length = generation->prompt.size() - generation->resumed;
    for (uint32_t i = 0; i < sequences; ++i) {
      AFT_RETURN_IF_ERROR(keep(*generation, length, generation->stop.max_tokens));
    }
  } else if (const auto* const texts = std::get_if<std::vector<ScoringRequest>>(&work)) {
    for (const ScoringRequest& text : *texts) {
      AFT_RETURN_IF_ERROR(keep(text, text.text.size(), /*most_outputs=*/0));
    }
  }
  return absl::OkStatus();
}

void CallStates::Put(const Client& client, const std::string& model, uint32_t sequence,
                     std::shared_ptr<TurnEnd> turn, std::string note, StateAccess::Stored done) {
  StateAccess::Place place = std::exchange(places_[sequence], {});
  std::optional<SequenceState> state;
  const absl::Status made = Catching([&]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(state, MakeState(std::move(*turn)));
    state->note = std::move(note);
    return absl::OkStatus();
  });
  if (made.ok()) {
    states_.Put(std::move(place), client, model, *std::move(state), std::move(done));
  } else {
    place = {};
    done(made);
  }
}

void CallStates::FindStart(const Client& client, const v1::Resume& resume, const ModelInfo& info,
                           GenerationRequest& request, std::function<void()> done) {
  // The engine reads all of a prompt whose scores the client does not have.
  if (request.prompt_scores && request.resumed == 0) return done();
  if (!resume.state().empty()) {
    auto state = states_.Open("resume.state", resume.state());
    if (state.ok() && IsWithin(*state, request, info)) {
      brought_bytes_ += static_cast<size_t>(StateBytes(*state));
      request.start = std::make_shared<const SequenceState>(*std::move(state));
      return done();
    }
  }
  if (resume.resume_id().empty() || !states_.keeps()) return done();
  states_.FindResumePoint(
      client, resume.resume_id(),
      [this, &client, &resume, &info, &request,
       done = std::move(done)](const absl::StatusOr<std::shared_ptr<const SequenceState>>& found) {
        if (!found.ok()) {
          // This may be the thread that talks to Redis for all clients, and `done` reads the text.
          const absl::Status added = Catching([&] {
            decoders_.Add(client, request.prompt.size() * sizeof(TokenId), done);
            return absl::OkStatus();
          });
          if (!added.ok()) done();
          return;
        }
        found_id_ = resume.resume_id();
        if (IsWithin(**found, request, info)) request.start = *found;
        done();
      });
}

void CallStates::Survive(const std::shared_ptr<const Client>& client, const ServedModel& model,
                         const CallIds& ids, GenerationRequest& request,
                         const std::function<bool(size_t)>& hold) {
  const StatesConfig& config = states_.config();
  // A drain stores the last state only where other servers find it.
  const bool kept = states_.keeps() && (config.checkpoint_tokens > 0 || states_.shared());
  hands_to_client_ = !states_.shared() && !config.key_files.empty();
  if (!kept && !hands_to_client_) return;

  // Twice the largest state: one is held while another one is written or sent. The ids of the
  // output since the last state are in a vector, which may take twice their memory while it grows.
  const int64_t before = request.tokens_before() + static_cast<int64_t>(request.prompt.size());
  const int64_t most = MaxStateBytes(model.info, before + request.stop.max_tokens, /*added=*/0);
  const int64_t outputs =
      request.max_outputs(model.info.max_seq_len) * static_cast<int64_t>(sizeof(TokenId));
  const auto bytes = static_cast<size_t>(2 * (most + 2 * model.info.vocab_size + outputs));
  if (!hold(bytes)) return;
  kept_bytes_ = bytes;
  keeper_ = std::make_shared<StreamKeeper>(
      StreamKeeper::Environment{states_, decoders_, metrics_}, client, model.config.name,
      TextOf(request, model.info.fingerprint), request.start, found_id_, ids);
  request.survival.sink = keeper_;
  if (states_.keeps() && config.checkpoint_tokens > 0) {
    request.survival.interval = std::max<int64_t>(config.checkpoint_tokens / 2, 1);
  }
  if (kept) resume_id_ = keeper_->id();
}

void CallStates::HandOver(ResumePoint point, std::function<void(std::string)> done) {
  keeper_->HandOver(
      std::move(point), hands_to_client_,
      [&metrics = metrics_, done = std::move(done)](absl::StatusOr<std::string> sealed) {
        auto& counter = !sealed.ok()      ? metrics.handed_text_only
                        : sealed->empty() ? metrics.handed_to_store
                                          : metrics.handed_to_client;
        counter.Increment();
        done(sealed.ok() ? *std::move(sealed) : "");
      });
}

void CallStates::Forget(absl::StatusCode code, bool begun) {
  if (keeper_ == nullptr) return;
  // A client may resume a stream that ended with one of these codes. The clients of this repository
  // resume after INTERNAL only if another program, such as a proxy, gave it. Other clients may try
  // to resume once.
  const bool broken = code == absl::StatusCode::kUnavailable ||
                      code == absl::StatusCode::kCancelled || code == absl::StatusCode::kInternal;
  if (!broken || !begun) keeper_->Forget(/*old=*/begun);
}

}  // namespace aft::server
