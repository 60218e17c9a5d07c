#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/call/call_ids.h"
#include "server/call/decode_pool.h"
#include "server/call/stream_keeper.h"
#include "server/config/client.h"
#include "server/engine/request.h"
#include "server/registry/served_model.h"
#include "server/states/state_access.h"

namespace aft::server {

// What a call goes on from and what it leaves behind: room for the states that it stores, and the
// resume points of a stream that is to survive its server. Thread-compatible; the callbacks come
// from threads of the decode pool or of the place where states rest.
class CallStates {
 public:
  // All must outlive this.
  CallStates(StateAccess& states, DecodePool& decoders, StateMetrics& metrics)
      : states_(states), decoders_(decoders), metrics_(metrics) {}

  // Finds the text before. Calls `done`, here or on another thread. Errors as StateAccess::Find.
  void FindPrevious(const Client& client, const v1::Previous& previous, StateAccess::Found done);
  // What states take that the request has brought itself.
  size_t brought_bytes() const { return brought_bytes_; }

  // Keeps room for what sequences of so many tokens, with at most `most_outputs` after them, leave
  // behind, with a note of at most `note_bytes` each. Errors as StateAccess::Reserve.
  absl::Status KeepPlaces(const Client& client, const v1::Store& store, const ModelInfo& info,
                          const std::vector<size_t>& lengths, int64_t most_outputs,
                          int64_t tokens_before, size_t note_bytes);
  // As it was given to KeepPlaces.
  size_t note_bytes() const { return note_bytes_; }
  // The id that the state of that sequence will have. REQUIRES: room is kept for it.
  const std::string& state_id(uint32_t sequence) const { return places_[sequence].id; }
  void DropPlaces() { places_.clear(); }
  void DropPlace(uint32_t sequence) {
    if (!places_.empty()) places_[sequence] = {};
  }

  // Stores what the turn left behind, with that note, in the room that was kept for that sequence.
  void Put(const Client& client, const std::string& model, uint32_t sequence,
           std::shared_ptr<TurnEnd> turn, std::string note, StateAccess::Stored done);

  // Looks for a state of the broken stream that `request` continues, which becomes its `start`.
  // Calls `done`, here or on another thread. It is no error that there is none.
  void FindStart(const Client& client, const v1::Resume& resume, const ModelInfo& info,
                 GenerationRequest& request, std::function<void()> done);

  // The stream is to survive this server, if it can: whether it leaves something behind, which
  // takes at most kept_bytes(). `hold`: takes that memory; false: there is none.
  bool Survive(const std::shared_ptr<const Client>& client, const ServedModel& model,
               const CallIds& ids, GenerationRequest& request,
               const std::function<bool(size_t)>& hold);
  // Under which its resume points are kept; "": they are not.
  const std::string& resume_id() const { return resume_id_; }
  size_t kept_bytes() const { return kept_bytes_; }

  // The engine begins with the stream.
  void KeepStart() {
    if (keeper_ != nullptr) keeper_->KeepStart();
  }
  // The last resume point. `done` gets the sealed state for the client, if the client is to have
  // it; else "". Does not fail: a state that is lost costs its stream time, nothing else.
  void HandOver(ResumePoint point, std::function<void(std::string)> done);
  // The call has ended so. What a client may resume stays.
  void Forget(absl::StatusCode code, bool begun);

 private:
  StateAccess& states_;
  DecodePool& decoders_;
  StateMetrics& metrics_;
  std::vector<StateAccess::Place> places_;  // of the states that are to be stored, or none
  size_t brought_bytes_ = 0;
  size_t note_bytes_ = 0;
  std::string found_id_;  // under which a state was found
  std::string resume_id_;
  std::shared_ptr<StreamKeeper> keeper_;  // null: the stream leaves nothing behind
  bool hands_to_client_ = false;          // what it leaves behind at a drain
  size_t kept_bytes_ = 0;                 // that the keeper may hold
};

}  // namespace aft::server
