#include "server/api/openai/stored_response.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "server/api/openai/error_page.h"
#include "server/api/openai/responses_exchange.h"
#include "server/call/call_report.h"

namespace aft::server::openai {

StoredResponse::StoredResponse(InferenceEnvironment& environment, OpenCalls& calls,
                               const ClientIdentity& identity, Method method, std::string id,
                               Caller caller, CallerFacts facts,
                               std::map<std::string, std::string> headers)
    : environment_(environment),
      calls_(calls),
      identity_(identity),
      method_(method),
      id_(std::move(id)),
      arrival_(std::chrono::steady_clock::now()),
      caller_(std::move(caller)),
      facts_(std::move(facts)),
      headers_(std::move(headers)),
      charge_(environment.ledger, *caller_.client) {}

std::optional<HttpPage> StoredResponse::Expect(size_t bytes) {
  if (bytes == 0) return std::nullopt;
  const absl::Status status = absl::InvalidArgumentError("the request must have no body");
  Report(status);
  return WithHeaders(ErrorPage(status, caller_.ids.request));
}

HttpPage StoredResponse::Refused(int status) {
  Report(PartError("body", status));
  return WithHeaders(PartErrorPage("body", status, caller_.ids.request));
}

void StoredResponse::Gone(bool stuck) {
  charge_.Close();
  if (!stuck) return;
  environment_.metrics.stuck_calls.Increment();
  LogStuck(caller_, method_, environment_.limits.write_stall);
}

void StoredResponse::Report(const absl::Status& refusal) const {
  ReportRefusal(environment_, environment_.client_metrics, caller_, method_, refusal,
                std::chrono::steady_clock::now() - arrival_);
}

void StoredResponse::Start(std::string /*body*/, std::shared_ptr<HttpAnswer> answer) {
  answer_ = std::move(answer);
  place_ = calls_.Enter();
  if (place_ == nullptr) return Answer(absl::UnavailableError("the server is shutting down"));
  v1::Previous state;
  state.set_state_id(StateIdOf(id_));
  if (state.state_id().empty()) return Answer(absl::NotFoundError("there is no such response"));
  // The callback runs on this thread or on a thread of the storage of states.
  environment_.states.Find(*caller_.client, state,
                           [self = shared_from_this()](
                               const absl::StatusOr<std::shared_ptr<const SequenceState>>& found) {
                             self->answer_->Post([self, found] { self->OnFound(found); });
                           });
}

void StoredResponse::OnFound(const absl::StatusOr<std::shared_ptr<const SequenceState>>& found) {
  // The list of clients may have changed while the storage was asked.
  if (const auto client = OpenCalls::FindAgain(identity_, facts_, caller_.client->name);
      !client.ok()) {
    return Answer(client.status());
  }
  if (found.ok()) {
    if (ResponseOf(**found).empty()) {
      return Answer(absl::NotFoundError("there is no such response"));
    }
  } else if (method_ == Method::kGetState || !absl::IsResourceExhausted(found.status())) {
    return Answer(found.status());
  }  // else a state that has no room in this server's memory is deleted unseen
  if (method_ == Method::kGetState) {
    const absl::string_view response = ResponseOf(**found);
    // The charge covers the page and the copy of it that is being sent.
    if (charge_.Resize(static_cast<int64_t>(2 * response.size()))) {
      return Answer(WithId(response, id_));
    }
    return Answer(environment_.RefuseForMemory());
  }
  v1::StateServiceDeleteRequest request;
  request.set_id(StateIdOf(id_));
  environment_.states.Delete(
      *caller_.client, request,
      [self = shared_from_this()](const absl::StatusOr<v1::StateServiceDeleteResponse>& deleted) {
        self->answer_->Post([self, status = deleted.status()] {
          if (!status.ok()) return self->Answer(status);
          self->Answer(
              DumpJson(OrderedJson{{"id", self->id_}, {"object", "response"}, {"deleted", true}}));
        });
      });
}

void StoredResponse::Answer(absl::StatusOr<std::string> json) {
  absl::Status status = json.status();
  // FAILED_PRECONDITION: this server stores no states.
  const bool unknown = absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  // An id gives access to its state, so the log must not show it.
  if (unknown) status = absl::NotFoundError("there is no such response");
  ReportWithoutModel(environment_, caller_, method_, arrival_, status);
  if (unknown) {
    constexpr size_t kMostShown = 100;
    status = absl::NotFoundError(absl::StrCat(
        "Response with id ", DumpJson(Json(id_.substr(0, kMostShown))), " not found."));
  }
  // The storage names the fields of gRPC's requests.
  absl::string_view rest = status.message();
  if (absl::ConsumePrefix(&rest, "previous.state_id: ") || absl::ConsumePrefix(&rest, "id: ")) {
    status = absl::Status(status.code(), rest);
  }
  // A state for which there is no room while the client has no other one never fits.
  const bool never = absl::StrContains(status.message(), " more than 0 of this client's ");
  std::optional<std::chrono::milliseconds> retry_after;
  if (absl::IsResourceExhausted(status) && !never) {
    retry_after = environment_.retry_hint.After(EngineLoad());
  }
  answer_->Send(WithHeaders(
      status.ok() ? HttpPage{.content_type = "application/json", .body = *std::move(json)}
                  : ErrorPage(status, caller_.ids.request, retry_after)));
}

HttpPage StoredResponse::WithHeaders(HttpPage page) const {
  page.headers.insert(headers_.begin(), headers_.end());
  return page;
}

}  // namespace aft::server::openai
