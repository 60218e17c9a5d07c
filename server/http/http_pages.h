#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "server/http/http_handler.h"
#include "server/http/http_message.h"

namespace aft::server {

// Serves pages by their paths to GET and HEAD, compressed if the client accepts gzip. Other paths
// get 404, other methods 405. At a loopback address a request whose Host is neither localhost nor
// an IP address gets 403, so that no page of the web can read these pages through a host name that
// it points to this machine (DNS rebinding). The server's thread makes each page when it is asked
// for.
class HttpPages final : public HttpHandler {
 public:
  using Pages = std::map<std::string, std::function<HttpPage()>>;

  explicit HttpPages(Pages pages) : pages_(std::move(pages)) {}

  std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) override;

 private:
  HttpPage Find(const HttpRequest& request) const;

  const Pages pages_;
};

}  // namespace aft::server
