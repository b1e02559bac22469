// A Go service behind Reconsume: go run orders.go
package main

import (
	"encoding/json"
	"log"
	"net/http"
)

var catalogue = map[string]bool{"A-17": true}

func handle(w http.ResponseWriter, r *http.Request) {
	var order struct{ Sku string }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
	} else if order.Sku == "" {
		fail(w, http.StatusBadRequest, "it has no sku")
	} else if !catalogue[order.Sku] {
		fail(w, http.StatusUnprocessableEntity, order.Sku+" is not in the catalogue")
	} else {
		w.WriteHeader(http.StatusNoContent)
	}
}

func fail(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": reason})
}

func main() {
	http.HandleFunc("POST /events", handle)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
