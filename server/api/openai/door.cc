#include "server/api/openai/door.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "server/api/openai/embeddings_exchange.h"
#include "server/api/openai/error_page.h"
#include "server/api/openai/generation_exchange.h"
#include "server/api/openai/http_call.h"
#include "server/api/openai/responses_exchange.h"
#include "server/api/openai/stored_response.h"
#include "server/api/openai/token_exchange.h"
#include "server/api/openai/try_html.h"
#include "server/call/call_report.h"
#include "server/http/html_page.h"
#include "server/observability/gzip.h"

namespace aft::server::openai {
namespace {

constexpr char kTryPath[] = "/";
constexpr char kModelsPath[] = "/v1/models";
constexpr char kResponsePath[] = "/v1/responses/";  // in front of an id

template <typename Exchange, auto... kArguments>
std::unique_ptr<JsonExchange> Make(const std::string& id) {
  return std::make_unique<Exchange>(kArguments..., id);
}

struct Route {
  const char* path;
  Method method;
  std::unique_ptr<JsonExchange> (*make)(const std::string& id);
};
constexpr Route kPosts[] = {
    {"/v1/completions", Method::kCompletions, Make<GenerationExchange, /*chat=*/false>},
    {"/v1/chat/completions", Method::kChatCompletions, Make<GenerationExchange, /*chat=*/true>},
    {"/v1/responses", Method::kResponses, Make<ResponsesExchange>},
    {"/v1/embeddings", Method::kEmbeddings, Make<EmbeddingsExchange, /*classify=*/false>},
    {"/classify", Method::kClassify, Make<EmbeddingsExchange, /*classify=*/true>},
    {"/tokenize", Method::kTokenize, Make<TokenExchange, /*detokenize=*/false>},
    {"/detokenize", Method::kDetokenize, Make<TokenExchange, /*detokenize=*/true>}};
constexpr const char* kGets[] = {kTryPath, kModelsPath, "/health", "/version"};

bool IsOneOf(const std::vector<std::string>& list, absl::string_view value) {
  return std::any_of(list.begin(), list.end(), [value](const std::string& one) {
    return one == "*" || absl::EqualsIgnoreCase(one, value);
  });
}

HttpPage JsonPage(const OrderedJson& json) {
  return {.content_type = "application/json", .body = absl::StrCat(DumpJson(json), "\n")};
}

// The page on which people try the models. It holds no data and uses the API as any other client
// does. It is compressed once, because the thread that serves it also carries all streams.
const HttpPage& TryPage(bool gzip) {
  static const auto& plain = *new HttpPage(HtmlPage(kTryHtml));
  static const auto& packed = *[] {
    auto* page = new HttpPage(plain);
    if (std::optional<std::string> body = Gzip(plain.body)) {
      page->body = *std::move(body);
      page->headers["Content-Encoding"] = "gzip";
    }
    return page;
  }();
  return gzip ? packed : plain;
}

// Returns the kind of requests that the model serves.
const char* TaskOf(const ModelStatus& model) {
  if (!model.encodes) return "generate";
  return model.info.has_value() && !model.info->labels.empty() ? "classify" : "encode";
}

// The headers of every answer.
std::map<std::string, std::string> IdHeaders(const CallIds& ids) {
  return {{"x-request-id", ids.request}, {"traceparent", ids.trace.Traceparent()}};
}

// Returns the headers that a page of an allowed origin may send: these, and of those that it asks
// for the ones by which OpenAI's packages describe themselves.
std::string AllowedHeaders(absl::string_view asked) {
  std::string allowed = "authorization, content-type, user-agent, x-request-id, traceparent";
  for (absl::string_view name : absl::StrSplit(asked, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (absl::StartsWithIgnoreCase(name, "x-stainless-") ||
        absl::StartsWithIgnoreCase(name, "openai-")) {
      absl::StrAppend(&allowed, ", ", name);
    }
  }
  return allowed;
}

// Returns what makes the body of the request unreadable; "" if nothing does.
const char* WrongBody(const HttpRequest& request) {
  const absl::string_view type = request.Header("Content-Type");
  if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type.substr(0, type.find(';'))),
                              "application/json")) {
    return "Content-Type: must be application/json";
  }
  const bool coded = request.Count("Content-Encoding") > 0 &&
                     !absl::EqualsIgnoreCase(request.Header("Content-Encoding"), "identity");
  return coded ? "Content-Encoding: must be identity" : "";
}

HttpPage PlainError(int status, const absl::Status& error, const std::string& id) {
  HttpPage page = ErrorPage(error, id);
  page.status = status;
  return page;
}

}  // namespace

absl::Status Door::CheckHost(const HttpRequest& request) const {
  if (request.NeedsNoDns() || IsOneOf(config_.allowed_hosts, request.Host())) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      "Host: must be localhost, an IP address or one of http.allowed_hosts");
}

absl::Status Door::CheckOrigin(const HttpRequest& request, Headers& headers) const {
  const absl::string_view origin = request.Header("Origin");
  if (request.Count("Origin") == 0) return absl::OkStatus();
  const size_t scheme = origin.find("://");
  const bool own = scheme != absl::string_view::npos &&
                   absl::EqualsIgnoreCase(origin.substr(scheme + 3), request.Header("Host"));
  if (own) return absl::OkStatus();
  if (origin.empty() || !IsOneOf(config_.allow_origins, origin)) {
    return absl::PermissionDeniedError("Origin: is not one of http.allow_origins");
  }
  headers["Access-Control-Allow-Origin"] = std::string(origin);
  headers["Access-Control-Expose-Headers"] =
      "x-request-id, retry-after, retry-after-ms, x-should-retry";
  headers["Cross-Origin-Resource-Policy"] = "cross-origin";
  headers["Vary"] = "Origin";
  return absl::OkStatus();
}

HttpPage Door::Models(const Client& client, const std::string& name) const {
  OrderedJson list = OrderedJson::array();
  for (const ModelStatus& model : environment_.registry.List(client)) {
    if (model.state != ModelState::kReady || (!name.empty() && model.name != name)) continue;
    OrderedJson entry = {
        {"id", model.name}, {"object", "model"}, {"created", 0}, {"owned_by", "aft-serve"}};
    if (model.info.has_value() && model.info->max_seq_len > 0) {
      entry["max_model_len"] = model.info->max_seq_len;
    }
    entry["task"] = TaskOf(model);
    if (model.info.has_value() && !model.info->labels.empty()) {
      entry["labels"] = model.info->labels;
    }
    if (!name.empty()) return JsonPage(entry);
    list.push_back(std::move(entry));
  }
  if (name.empty()) return JsonPage({{"object", "list"}, {"data", std::move(list)}});
  return ErrorPage(absl::NotFoundError(absl::StrCat("model: \"", name, "\" is not served")), "");
}

// The time that the head took is not known, so the log has 0 ms.
std::optional<HttpPage> Door::HeadRefused(int status, const std::string& peer) {
  Caller caller;
  caller.peer = peer;
  TakeIds(std::nullopt, "", caller.ids).IgnoreError();
  ReportRefusal(environment_, environment_.client_metrics, caller, Method::kHttpHead,
                PartError("head", status), Duration(0));
  HttpPage page = PartErrorPage("head", status, caller.ids.request);
  page.headers = IdHeaders(caller.ids);
  return page;
}

std::variant<HttpPage, std::shared_ptr<HttpTask>> Door::Handle(const HttpRequest& request) {
  const TimePoint arrival = std::chrono::steady_clock::now();
  const bool get = request.method == "GET" || request.method == "HEAD";
  const auto* const post = std::find_if(std::begin(kPosts), std::end(kPosts),
                                        [&](const Route& r) { return request.path == r.path; });
  const bool one_model = absl::StartsWith(request.path, absl::StrCat(kModelsPath, "/"));
  const bool one_response = absl::StartsWith(request.path, kResponsePath);
  const bool deletes = one_response && request.method == "DELETE";
  const bool has_page =
      one_model || one_response ||
      std::find(std::begin(kGets), std::end(kGets), request.path) != std::end(kGets);
  // Unset if the request is not counted in the metrics.
  std::optional<Method> method;
  if (post != std::end(kPosts) && request.method == "POST") method = post->method;
  if (get && (one_model || request.path == kModelsPath)) method = Method::kListModels;
  if (get && one_response) method = Method::kGetState;
  if (deletes) method = Method::kDeleteState;

  Caller caller;
  caller.peer = request.peer;
  const bool has_id = request.Count("x-request-id") > 0;
  absl::Status status =
      TakeIds(has_id ? std::make_optional(request.Header("x-request-id")) : std::nullopt,
              request.Header("traceparent"), caller.ids);
  Headers headers = IdHeaders(caller.ids);
  const auto answer = [&headers](HttpPage page) {
    page.headers.insert(headers.begin(), headers.end());
    return page;
  };
  const auto refuse = [&](const absl::Status& why) {
    if (method.has_value()) {
      ReportRefusal(environment_, environment_.client_metrics, caller, *method, why,
                    std::chrono::steady_clock::now() - arrival);
    }
    return answer(ErrorPage(why, caller.ids.request));
  };
  if (!status.ok()) return refuse(status);
  if (status = CheckHost(request); !status.ok()) return refuse(status);
  if (status = CheckOrigin(request, headers); !status.ok()) return refuse(status);
  if (request.method == "OPTIONS" && request.Count("Access-Control-Request-Method") > 0) {
    return answer({.status = 204,
                   .content_type = "",
                   .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                               {"Access-Control-Allow-Headers",
                                AllowedHeaders(request.Header("Access-Control-Request-Headers"))},
                               {"Access-Control-Max-Age", "600"}}});
  }

  if (post == std::end(kPosts) && !has_page) {
    const auto path = [](std::string* out, const Route& route) { out->append(route.path); };
    return answer(
        PlainError(404,
                   absl::NotFoundError(absl::StrCat(
                       "there is no ", DumpJson(Json(request.path.substr(0, 100))), "; there are ",
                       absl::StrJoin(kPosts, " ", path), " ", absl::StrJoin(kGets, " "))),
                   caller.ids.request));
  }
  if (!deletes && (has_page != get || (!has_page && request.method != "POST"))) {
    const char* const allowed = one_response ? "GET, HEAD, DELETE"
                                : has_page   ? "GET, HEAD"
                                             : "POST";
    HttpPage page = PlainError(405, absl::InvalidArgumentError(absl::StrCat(allowed, " only")),
                               caller.ids.request);
    page.headers["Allow"] = allowed;
    return answer(std::move(page));
  }
  if (request.path == "/health") {
    if (ready_) return answer({.body = ""});
    return refuse(absl::UnavailableError("not ready"));
  }
  if (request.path == "/version") return answer(JsonPage({{"version", version_}}));

  CallerFacts facts = {.peer = request.peer,
                       .authorization = std::string(request.Header("Authorization")),
                       .forwarded_for = request.Joined("X-Forwarded-For"),
                       .cache_salt = std::string(request.Header("aft-cache-salt")),
                       .certificate_names = request.certificate_names};
  if (request.Count("aft-cache-salt") > 1) {
    return refuse(absl::InvalidArgumentError("aft-cache-salt: occurs twice"));
  }
  if (draining_) return refuse(absl::UnavailableError("the server is draining"));
  if (request.path == kTryPath) {
    headers.insert({"Vary", "Accept-Encoding"});
    return answer(TryPage(AcceptsGzip(request.Header("Accept-Encoding"))));
  }
  auto client = identity_.Find(facts);
  if (!client.ok()) return refuse(client.status());
  caller.client = *std::move(client);
  auto salt = identity_.CacheSaltOf(facts);
  if (!salt.ok()) return refuse(salt.status());
  caller.cache_salt = *std::move(salt);
  if (one_response) {
    if (absl::StrContains(request.query, "stream=true")) {
      return refuse(absl::InvalidArgumentError("stream: is not supported"));
    }
    return std::make_shared<StoredResponse>(
        environment_, calls_, identity_, *method, request.path.substr(sizeof(kResponsePath) - 1),
        std::move(caller), std::move(facts), std::move(headers));
  }
  if (has_page) {
    HttpPage page = Models(*caller.client,
                           one_model ? request.path.substr(sizeof(kModelsPath)) : std::string());
    environment_.Report(*method, arrival,
                        page.status == 200 ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
    return answer(std::move(page));
  }
  if (const absl::string_view wrong = WrongBody(request); !wrong.empty()) {
    HttpPage page = refuse(absl::InvalidArgumentError(wrong));
    page.status = 415;
    return page;
  }
  auto exchange = post->make(caller.ids.request);
  return std::make_shared<HttpCall>(environment_, calls_, identity_, std::move(exchange),
                                    std::move(caller), std::move(facts), std::move(headers));
}

}  // namespace aft::server::openai
