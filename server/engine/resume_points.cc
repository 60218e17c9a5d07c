#include "server/engine/resume_points.h"

#include <memory>
#include <utility>

#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

void ResumePoints::MaybeLeave(TokenStream& stream) {
  const Survival& survival = stream.survival;
  if (survival.interval == 0 || stream.position() < stream.next_point) return;
  if (!stream.sits_out) {
    if (std::exchange(left_one_, true)) return;
    if (!survival.sink->Ready()) {
      stream.next_point = stream.position() + survival.interval;
      return;
    }
  }
  stream.sits_out = stream.flights() > 0;
  if (stream.sits_out) return ContinuousScheduler::Pause(stream);
  stream.next_point = stream.position() + survival.interval;
  absl::StatusOr<std::shared_ptr<const KeptState>> state = slots_.Keep(stream.slot());
  if (!state.ok()) return;  // the next one may succeed; if the device has failed, its steps fail
  survival.sink->OnResumePoint({*std::move(state), std::exchange(stream.unsaved, {})});
}

std::shared_ptr<ResumePoint> ResumePoints::TakeLast(TokenStream& stream) const {
  if (stream.survival.sink == nullptr || stream.prompt_left() > 0) return nullptr;
  std::shared_ptr<const KeptState> state = std::move(stream.parked);
  if (stream.slot() >= 0) state = slots_.Keep(stream.slot()).value_or(nullptr);
  return std::make_shared<ResumePoint>(ResumePoint{std::move(state), std::move(stream.unsaved)});
}

}  // namespace aft::server
