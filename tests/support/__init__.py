"""What tests share: small networks and data sets, references written a second time, a browser, and the documents."""
