"""A Django service behind Reconsume, in one file; a project has the same view and settings.

pip install django
python orders.py runserver 8080
"""

import json
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

CATALOGUE = {"A-17"}

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="nothing here is signed",
)


@csrf_exempt
@require_POST
def handle(request: HttpRequest) -> HttpResponse:
    try:
        sku = json.loads(request.body)["sku"]
    except (ValueError, TypeError, LookupError):
        return JsonResponse({"error": "it has no sku"}, status=400)
    if sku not in CATALOGUE:
        return JsonResponse({"error": f"{sku} is not in the catalogue"}, status=422)
    return HttpResponse(status=204)


urlpatterns = [path("events", handle)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
