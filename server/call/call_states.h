#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/call/call_ids.h"
#include "server/call/decode_pool.h"
#include "server/call/stream_keeper.h"
#include "server/call/work.h"
#include "server/config/client.h"
#include "server/engine/request.h"
#include "server/registry/served_model.h"
#include "server/states/state_access.h"

namespace aft::server {

// The states that a call reads and leaves: the state that it continues from, the room for the
// states that it stores, and the resume points of a stream that is to survive its server.
// Thread-compatible. Callbacks come from threads of the decode pool or of the place where states
// are stored.
class CallStates {
 public:
  // All arguments must outlive this object.
  CallStates(StateAccess& states, DecodePool& decoders, StateMetrics& metrics)
      : states_(states), decoders_(decoders), metrics_(metrics) {}

  // Finds the state of the text before. Calls `done` on this or another thread. Errors as
  // StateAccess::Find.
  void FindPrevious(const Client& client, const v1::Previous& previous, StateAccess::Found done);
  // Memory of the states that came with the request itself.
  size_t brought_bytes() const { return brought_bytes_; }

  // Reserves room for the state of each of the `sequences` of `work`, with a note of at most
  // `note_bytes`. Errors as StateAccess::Reserve.
  absl::Status KeepPlaces(const Client& client, const v1::Store& store, const ModelInfo& info,
                          const Work& work, uint32_t sequences, size_t note_bytes);
  // The value that KeepPlaces got.
  size_t note_bytes() const { return note_bytes_; }
  // The id that the state of `sequence` will have. REQUIRES: room is reserved for it.
  const std::string& state_id(uint32_t sequence) const { return places_[sequence].id; }
  void DropPlaces() { places_.clear(); }
  void DropPlace(uint32_t sequence) {
    if (!places_.empty()) places_[sequence] = {};
  }

  // Stores the end of the turn with `note`, in the room that is reserved for `sequence`.
  void Put(const Client& client, const std::string& model, uint32_t sequence,
           std::shared_ptr<TurnEnd> turn, std::string note, StateAccess::Stored done);

  // Looks for a state of the broken stream that `request` continues, and makes it `request.start`.
  // Calls `done` on this thread or one of the decode pool. It is no error if no state is found.
  void FindStart(const Client& client, const v1::Resume& resume, const ModelInfo& info,
                 GenerationRequest& request, std::function<void()> done);

  // Prepares a stream to survive this server. Calls `hold` to reserve kept_bytes() of memory;
  // `hold` returns false if there is no room, and then the stream leaves no state.
  void Survive(const std::shared_ptr<const Client>& client, const ServedModel& model,
               const CallIds& ids, GenerationRequest& request,
               const std::function<bool(size_t)>& hold);
  // The id under which resume points are kept; "" if none are kept.
  const std::string& resume_id() const { return resume_id_; }
  size_t kept_bytes() const { return kept_bytes_; }

  // Is called when the engine begins with the stream. Without an id no request could find its
  // start.
  void KeepStart() {
    if (!resume_id_.empty()) keeper_->KeepStart();
  }
  // Takes the last resume point. `done` gets the sealed state if the client is to have it, else "".
  // Never fails: if the state is lost, the stream is resumed from its text, which only costs time.
  void HandOver(ResumePoint point, std::function<void(std::string)> done);
  // The call has ended with `code`. Removes resume points unless the client may resume from them.
  void Forget(absl::StatusCode code, bool begun);

 private:
  StateAccess& states_;
  DecodePool& decoders_;
  StateMetrics& metrics_;
  std::vector<StateAccess::Place> places_;  // for the states to store; may be empty
  size_t brought_bytes_ = 0;
  size_t note_bytes_ = 0;
  std::string found_id_;  // the id under which FindStart found a state
  std::string resume_id_;
  std::shared_ptr<StreamKeeper> keeper_;  // null: the stream leaves no state
  bool hands_to_client_ = false;          // a drain sends the last state to the client
  size_t kept_bytes_ = 0;                 // memory that the keeper may hold
};

}  // namespace aft::server
